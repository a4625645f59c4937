// libllama: a "model" that needs no file.
#pragma once

#include <string>

// The device that it runs on: "CPU", "CUDA0".
std::string llama_device();

// A word that follows the prompt; empty where the device failed.
std::string llama_next_word(const std::string& prompt);
