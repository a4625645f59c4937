#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "hello.h"

namespace hello {

namespace {

constexpr std::size_t kContext = 256;  // bytes of a prompt
constexpr float kTemperature = 16.0F;  // probabilities are softmax(logits / kTemperature)
constexpr float kNever = -1048576.0F;  // far below any sum of products, and exact in a float

// Fills in whole numbers from -limit to limit. The distributions of <random> may differ between
// standard libraries; its engines do not.
void fill(float* values, int count, int limit, std::mt19937_64& source) {
    for (int i = 0; i < count; ++i) {
        values[i] = static_cast<float>(static_cast<int>(source() % (2U * limit + 1U)) - limit);
    }
}

class CpuBackend : public Backend {
public:
    explicit CpuBackend(const Model& model) : model_(model) {}

    void reset() override { state_.fill(0); }

    Logits step(int symbol) override {
        std::array<float, kHidden> next{};
        for (int i = 0; i < kHidden; ++i) {
            const float sum = model_.embedding[symbol][i] + dot(model_.recurrent[i]);
            next[i] = std::clamp(std::rint(sum / kStateDivisor), -kStateLimit, kStateLimit);
        }
        state_ = next;
        Logits logits{};
        for (int i = 0; i < kVocabulary; ++i) logits[i] = dot(model_.output[i]) + model_.bias[i];
        return logits;
    }

private:
    float dot(const float* row) const {
        return std::inner_product(state_.begin(), state_.end(), row, 0.0F);
    }

    const Model& model_;
    std::array<float, kHidden> state_{};
};

// Returns the symbol with the largest logit, the lowest such symbol on a tie.
int best(const Logits& logits) {
    return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int draw(Logits logits, std::mt19937& random) {
    const float largest = logits[best(logits)];
    for (float& logit : logits) logit = std::exp((logit - largest) / kTemperature);
    // Without the unknown symbol, whose probability is 0 but for rounding.
    return std::discrete_distribution<int>(logits.begin(), logits.end() - 1)(random);
}

}  // namespace

Model make_model() {
    std::mt19937_64 source(120);
    Model model;
    fill(model.embedding[0], kVocabulary * kHidden, 12, source);
    fill(model.recurrent[0], kHidden * kHidden, 2, source);
    fill(model.output[0], kVocabulary * kHidden, 3, source);
    fill(model.bias, kVocabulary, 8, source);
    model.bias[kUnknownSymbol] = kNever;
    return model;
}

std::unique_ptr<Backend> make_cpu_backend(const Model& model) {
    return std::make_unique<CpuBackend>(model);
}

int symbol_of(char byte) { return byte >= ' ' && byte <= '~' ? byte - ' ' : kUnknownSymbol; }

char character_of(int symbol) {
    return symbol == kUnknownSymbol ? '?' : static_cast<char>(' ' + symbol);
}

Generation generate(Backend& backend, const std::string& prompt, int count,
                    const Sampling& sampling, const OnCharacter& on_character) {
    using Clock = std::chrono::steady_clock;
    using Milliseconds = std::chrono::duration<double, std::milli>;
    std::mt19937 source(sampling.random ? std::random_device{}() : 0U);
    Generation result;
    const auto start = Clock::now();
    backend.reset();
    // An empty prompt still needs something to start from.
    Logits logits = backend.step(kUnknownSymbol);
    result.prompt_tokens = 1;
    for (const char byte : prompt.substr(prompt.size() - std::min(prompt.size(), kContext))) {
        logits = backend.step(symbol_of(byte));
        ++result.prompt_tokens;
    }
    const auto prompt_end = Clock::now();
    for (int i = 0; i < count; ++i) {
        if (sampling.keeps_logits) result.logits.push_back(logits);
        const int symbol = sampling.random ? draw(logits, source) : best(logits);
        result.text += character_of(symbol);
        if (!on_character(result.text.back())) break;
        if (i + 1 < count) logits = backend.step(symbol);
    }
    result.prompt_ms = Milliseconds(prompt_end - start).count();
    result.text_ms = Milliseconds(Clock::now() - prompt_end).count();
    return result;
}

}  // namespace hello
