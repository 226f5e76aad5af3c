// gguf_peer.mjs MODEL.gguf PROMPTS N: what node-llama-cpp (llama.cpp) makes of an exported file. One line of JSON a
// prompt: its token ids, the mean negative log probability of the 2nd to the last of them, N greedy ids after them
// (0: the token ids alone), and for each of these how far it is ahead of the second (difference of log probabilities).
import {pathToFileURL} from "node:url";
import fs from "node:fs";
import path from "node:path";

const [model_path, prompts_path, count] = process.argv.slice(2);
const {getLlama} = await import(pathToFileURL(path.join(process.env.BDLM_NPM, "node-llama-cpp/dist/index.js")));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 2});
const model = await llama.loadModel({modelPath: path.resolve(model_path)});
const context = await model.createContext({contextSize: 256, batchSize: 256, flashAttention: false,
    experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"});
const sequence = context.getSequence();
const all = {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}};

for (const prompt of fs.readFileSync(prompts_path, "utf8").split("\n").filter((line) => line)) {
    const ids = [...model.tokenize(prompt, true)];
    if (Number(count) === 0) {
        console.log(JSON.stringify({ids}));
        continue;
    }
    await sequence.clearHistory();
    let results = await sequence.controlledEvaluate(ids.map((id) => [id, all]));
    let sum = 0;
    for (let i = 0; i + 1 < ids.length; i++)
        sum -= Math.log(results[i].next.probabilities.get(ids[i + 1]));
    const greedy = [], ahead = [];
    let last = results.at(-1);
    for (let i = 0; i < Number(count); i++) {
        const [first, second] = [...last.next.probabilities.entries()].slice(0, 2);
        greedy.push(first[0]);
        ahead.push(Math.log(first[1] / second[1]));
        [last] = await sequence.controlledEvaluate([[first[0], all]]);
    }
    console.log(JSON.stringify({ids, nll: sum / (ids.length - 1), greedy, ahead}));
}
process.exit(0);
