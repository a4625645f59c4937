// The model, text generation, and the backends. No CUDA type is part of this interface.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#define HELLO_API __attribute__((visibility("default")))

namespace hello {

// Symbols 0 to 94 are the printable ASCII characters from ' ' to '~'; the last stands for every
// other byte of a prompt and is never generated.
inline constexpr int kVocabulary = 96;
inline constexpr int kUnknownSymbol = kVocabulary - 1;
inline constexpr int kHidden = 64;

// One step computes
//     state'  = clamp(rint((embedding[symbol] + recurrent * state) / kStateDivisor), +-kStateLimit)
//     logits  = output * state' + bias
// Weights and states are small whole numbers stored as floats. Every sum of them is exact in
// whatever order it is taken, which is why a GPU gives the same text as the CPU.
inline constexpr float kStateDivisor = 8.0F;
inline constexpr float kStateLimit = 15.0F;

struct Model {
    float embedding[kVocabulary][kHidden];
    float recurrent[kHidden][kHidden];
    float output[kVocabulary][kHidden];
    float bias[kVocabulary];
};

// Returns the model; its weights come from a fixed seed and are the same everywhere.
HELLO_API Model make_model();

// Why a backend cannot work.
struct HELLO_API BackendError : std::runtime_error {
    enum class Kind {
        no_device,        // no driver, a driver that is too old, or no GPU
        no_kernel_image,  // there is a GPU, but the binary holds no code for it
        failed,           // anything else: out of memory, a fault on the device, ...
    };

    BackendError(Kind why, const std::string& reason) : std::runtime_error(reason), kind(why) {}
    Kind kind;
};

using Logits = std::array<float, kVocabulary>;

// Runs the model. It holds the state of one text and is not thread-safe.
struct HELLO_API Backend {
    virtual ~Backend() = default;
    // Forgets the text so far. Throws BackendError.
    virtual void reset() = 0;
    // Feeds one symbol (0 <= symbol < kVocabulary). Throws BackendError.
    virtual Logits step(int symbol) = 0;
};

// Returns a backend that runs on the CPU. The model must outlive it.
HELLO_API std::unique_ptr<Backend> make_cpu_backend(const Model& model);

struct Generation {
    std::string text;       // printable ASCII, one character a token
    int prompt_tokens = 0;  // symbols that were fed before the first prediction
    double prompt_ms = 0;   // wall clock for the prompt
    double text_ms = 0;     // wall clock for the text, without the prompt
    std::vector<Logits> logits;  // by which each character was chosen, if they are kept
};

// Gets each character at once; returns false to end the text there.
using OnCharacter = std::function<bool(char)>;

struct Sampling {
    bool random = false;       // symbols are drawn; else the likeliest ones are taken
    bool keeps_logits = false;
};

// Continues the last 256 bytes of the prompt by `count` symbols. Throws BackendError.
HELLO_API Generation generate(Backend& backend, const std::string& prompt, int count,
                              const Sampling& sampling, const OnCharacter& on_character);

// The symbol that stands for a byte of a prompt, and the character of a symbol.
HELLO_API int symbol_of(char byte);
HELLO_API char character_of(int symbol);

namespace cuda {

// The newest CUDA version that the installed driver supports, "13.0"; "" where there is no driver.
HELLO_API std::string driver_version();

// The first visible device. Throws BackendError.
struct HELLO_API Device {
    Device();
    std::string name, capability;          // "12.0"
    std::size_t total_bytes, free_bytes;  // of device memory
};

// Returns a backend on the first visible device, with a copy of the model. Throws BackendError.
HELLO_API std::unique_ptr<Backend> make_backend(const Model& model);

}  // namespace cuda

}  // namespace hello
