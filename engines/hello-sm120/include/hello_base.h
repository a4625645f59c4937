// The model, its backends, and text generation: all that does not need a GPU.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#define HELLO_API __attribute__((visibility("default")))

namespace hello {

// Symbols 0 to 94 are the printable ASCII characters from ' ' to '~'; the last stands for every
// other byte of a prompt and is never generated.
inline constexpr int kVocabulary = 96;
inline constexpr int kUnknownSymbol = kVocabulary - 1;
inline constexpr int kHidden = 64;
// Only this many last bytes of a prompt are read.
inline constexpr int kContext = 256;

// One step computes
//     state'  = clamp(rint((embedding[symbol] + recurrent * state) / kStateDivisor), +-kStateLimit)
//     logits  = output * state' + bias
// Weights and states are small whole numbers stored as floats. Every sum of them is exact in
// whatever order it is taken, which is why a GPU gives the same text as the CPU.
inline constexpr float kStateDivisor = 8.0F;
inline constexpr float kStateLimit = 15.0F;
// Probabilities are softmax(logits / kTemperature).
inline constexpr float kTemperature = 16.0F;

// All matrices are row-major.
struct Model {
    std::vector<float> embedding;  // kVocabulary x kHidden
    std::vector<float> recurrent;  // kHidden x kHidden
    std::vector<float> output;     // kVocabulary x kHidden
    std::vector<float> bias;       // kVocabulary
};

// Returns the model; its weights come from a fixed seed and are the same everywhere.
HELLO_API Model make_model();

struct Step {
    int best = 0;  // symbol with the largest logit; the lowest such symbol on a tie
    std::array<float, kVocabulary> probabilities{};  // sum to 1
};

// Why a backend cannot work.
class HELLO_API BackendError : public std::runtime_error {
public:
    enum class Kind {
        no_device,        // no driver, a driver that is too old, or no GPU
        no_kernel_image,  // there is a GPU, but the binary holds no code for it
        failed,           // anything else: out of memory, a fault on the device, ...
    };

    BackendError(Kind kind, const std::string& reason);
    ~BackendError() override;

    Kind kind() const { return kind_; }

private:
    Kind kind_;
};

// Something that runs the model. It holds the state of one text and is not thread-safe.
class HELLO_API Backend {
public:
    virtual ~Backend();

    // "cpu" or "cuda".
    virtual const char* name() const = 0;

    // Forgets the text so far. Throws BackendError.
    virtual void reset() = 0;

    // Feeds one symbol (0 <= symbol < kVocabulary) and predicts the next. Throws BackendError.
    virtual Step step(int symbol) = 0;
};

// Returns a backend that runs on the CPU. The model must outlive it.
HELLO_API std::unique_ptr<Backend> make_cpu_backend(const Model& model);

enum class Sampling { greedy, random };

struct Generation {
    std::string text;         // printable ASCII, one character a token
    int prompt_tokens = 0;           // symbols that were fed before the first prediction
    double prompt_milliseconds = 0;  // wall clock for the prompt
    double milliseconds = 0;         // wall clock for the text, without the prompt
};

// Is given each character as soon as there is one; returns false to end the text.
using OnCharacter = std::function<bool(char)>;

// Continues the prompt (any bytes) by `count` symbols, fewer if `cancelled` becomes true or
// `on_character` returns false. Throws BackendError.
HELLO_API Generation generate(Backend& backend, std::string_view prompt, int count,
                              Sampling sampling, const std::atomic<bool>& cancelled,
                              const OnCharacter& on_character = {});

// The symbol that stands for a byte of a prompt.
HELLO_API int symbol_of(char byte);

// The character of a symbol (0 <= symbol < kVocabulary); '?' for the unknown one.
HELLO_API char character_of(int symbol);

}  // namespace hello
