// Loads the prebuilt CUDA backend of node-llama-cpp, and completes a text on the first card.
import {getLlama, LlamaCompletion, LlamaLogLevel} from "node-llama-cpp";

const logger = (_, message) => process.stderr.write(message + "\n");
const llama = await getLlama({
    gpu: "cuda", build: "never", progressLogs: false, logLevel: LlamaLogLevel.debug, logger
});
const model = await llama.loadModel({modelPath: process.argv[2], gpuLayers: "max"});
const context = await model.createContext({contextSize: 512, sequences: 1});
const completion = new LlamaCompletion({contextSequence: context.getSequence()});
const text = await completion.generateCompletion("Hello", {maxTokens: 12, temperature: 0});
console.log(JSON.stringify({cards: await llama.getGpuDeviceNames(), layers: model.gpuLayers, text}));
await llama.dispose();
