#!/usr/bin/perl
# edit_tensors.pl FOLDER EDIT ARGUMENT... - plants a fault in the F32 model.safetensors of a folder, in place.
#   zero-row TENSOR ROW      a row of a matrix becomes 0
#   copy FROM TENSOR AS      a tensor of another folder is added under a new name
#   rescale-norm             model.norm times 1/4 to 4, channel by channel, and lm_head divided by it: the same function
#   identity-layer N         a last layer N, with the shapes of the one before it, that adds nothing
use strict;
use warnings;
use JSON::PP;

sub slurp { my ($path) = @_; local $/; open my $in, '<:raw', $path or die "$path: $!\n"; return <$in>; }

sub tensors_of {
    my ($folder) = @_;
    my $bytes = slurp("$folder/model.safetensors");
    my $size = unpack 'Q<', $bytes;
    my $head = decode_json(substr $bytes, 8, $size);
    my %tensors;
    for my $name (grep { $_ ne '__metadata__' } keys %$head) {
        my ($begin, $end) = @{$head->{$name}{data_offsets}};
        die "$name: F32 wanted\n" if $head->{$name}{dtype} ne 'F32';
        $tensors{$name} = {shape => $head->{$name}{shape}, data => substr $bytes, 8 + $size + $begin, $end - $begin};
    }
    return \%tensors;
}

sub write_tensors {
    my ($folder, $tensors) = @_;
    my ($at, %head) = (0, __metadata__ => {format => 'pt'});
    my @names = sort keys %$tensors;
    for my $name (@names) {
        my $size = length $tensors->{$name}{data};
        $head{$name} = {dtype => 'F32', shape => $tensors->{$name}{shape}, data_offsets => [$at, $at + $size]};
        $at += $size;
    }
    my $text = JSON::PP->new->canonical->encode(\%head);
    $text .= ' ' x (-length($text) % 8);
    open my $out, '>:raw', "$folder/model.safetensors" or die "$folder: $!\n";
    print $out pack('Q<', length $text), $text, map { $tensors->{$_}{data} } @names;
    close $out or die "$folder: $!\n";
}

my ($folder, $edit, @arguments) = @ARGV;
my $tensors = tensors_of($folder);
if ($edit eq 'zero-row') {
    my ($name, $row) = @arguments;
    my $bytes = 4 * $tensors->{$name}{shape}[1];
    substr($tensors->{$name}{data}, $row * $bytes, $bytes) = "\0" x $bytes;
} elsif ($edit eq 'copy') {
    my ($from, $name, $as) = @arguments;
    $tensors->{$as} = tensors_of($from)->{$name};
} elsif ($edit eq 'rescale-norm') {
    my @norm = unpack 'f<*', $tensors->{'model.norm.weight'}{data};
    my @head = unpack 'f<*', $tensors->{'lm_head.weight'}{data};
    my @by = map { 2 ** (($_ * 7) % 5 - 2) } 0 .. $#norm;
    $norm[$_] *= $by[$_] for 0 .. $#norm;
    $head[$_] /= $by[$_ % @norm] for 0 .. $#head;
    $tensors->{'model.norm.weight'}{data} = pack 'f<*', @norm;
    $tensors->{'lm_head.weight'}{data} = pack 'f<*', @head;
} elsif ($edit eq 'identity-layer') {
    my $layer = $arguments[0];
    my $before = $layer - 1;
    for my $name (grep { /^model\.layers\.$before\./ } keys %$tensors) {
        (my $new = $name) =~ s/^model\.layers\.$before\./model.layers.$layer./;
        my $silent = $name =~ /o_proj|down_proj/;
        $tensors->{$new} = {shape => $tensors->{$name}{shape},
                            data => $silent ? "\0" x length $tensors->{$name}{data} : $tensors->{$name}{data}};
    }
    my $config = decode_json(slurp("$folder/config.json"));
    $config->{num_hidden_layers} = $layer + 1;
    push @{$config->{layer_types}}, 'full_attention' if $config->{layer_types};
    open my $out, '>', "$folder/config.json" or die "$folder: $!\n";
    print $out JSON::PP->new->canonical->pretty->encode($config);
} else {
    die "no such edit: $edit\n";
}
write_tensors($folder, $tensors);
