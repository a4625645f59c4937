// libllama: a "model" that needs no file.
#pragma once

#include <string>

// The device that it runs on: "CPU", "CUDA0".
std::string llama_device();

// Puts the only layer on the GPU if there is one, else or for `gpu_layers` 0 on the CPU; says on
// stderr where it is.
void llama_load(int gpu_layers);

// A word that follows the prompt, a token a byte; empty where the device failed.
std::string llama_next_word(const std::string& prompt);
