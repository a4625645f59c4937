#include "hello_base.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>

namespace hello {

namespace {

constexpr char kFirstCharacter = ' ';
constexpr char kLastCharacter = '~';
static_assert(kLastCharacter - kFirstCharacter + 1 == kUnknownSymbol);

// Far below any sum of products, and still exact in a float.
constexpr float kNever = -1048576.0F;

// splitmix64. The distributions of <random> may differ between standard libraries.
class WeightSource {
public:
    // Returns a whole number from -limit to limit.
    float next(int limit) {
        state_ += 0x9E3779B97F4A7C15U;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        z ^= z >> 31;
        return static_cast<float>(static_cast<int>(z % (2U * limit + 1U)) - limit);
    }

    std::vector<float> matrix(int rows, int columns, int limit) {
        std::vector<float> values(static_cast<std::size_t>(rows) * columns);
        std::generate(values.begin(), values.end(), [&] { return next(limit); });
        return values;
    }

private:
    std::uint64_t state_ = 120;
};

float dot(const float* row, const std::array<float, kHidden>& vector) {
    float sum = 0;
    for (int i = 0; i < kHidden; ++i) sum += row[i] * vector[i];
    return sum;
}

std::array<float, kVocabulary> softmax(const std::array<float, kVocabulary>& logits) {
    const float largest = *std::max_element(logits.begin(), logits.end());
    std::array<float, kVocabulary> result{};
    float sum = 0;
    for (int i = 0; i < kVocabulary; ++i) {
        result[i] = std::exp((logits[i] - largest) / kTemperature);
        sum += result[i];
    }
    for (float& probability : result) probability /= sum;
    return result;
}

class CpuBackend : public Backend {
public:
    explicit CpuBackend(const Model& model) : model_(model) {}

    const char* name() const override { return "cpu"; }

    void reset() override { state_.fill(0); }

    Step step(int symbol) override {
        update_state(&model_.embedding[static_cast<std::size_t>(symbol) * kHidden]);
        std::array<float, kVocabulary> logits{};
        for (int i = 0; i < kVocabulary; ++i) {
            logits[i] = dot(&model_.output[static_cast<std::size_t>(i) * kHidden], state_) +
                        model_.bias[i];
        }
        Step result;
        result.best = static_cast<int>(std::max_element(logits.begin(), logits.end()) -
                                       logits.begin());
        result.probabilities = softmax(logits);
        return result;
    }

private:
    void update_state(const float* embedding) {
        std::array<float, kHidden> next{};
        for (int i = 0; i < kHidden; ++i) {
            const float* row = &model_.recurrent[static_cast<std::size_t>(i) * kHidden];
            const float sum = (embedding[i] + dot(row, state_)) / kStateDivisor;
            next[i] = std::clamp(std::rint(sum), -kStateLimit, kStateLimit);
        }
        state_ = next;
    }

    const Model& model_;
    std::array<float, kHidden> state_{};
};

class Stopwatch {
public:
    // Returns the milliseconds since the last lap, or since the beginning.
    double lap() {
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::duration<double, std::milli> elapsed = now - std::exchange(last_, now);
        return elapsed.count();
    }

private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

int draw(const Step& step, std::mt19937& random) {
    // Without the unknown symbol, whose probability is 0 but for rounding.
    std::discrete_distribution<int> distribution(step.probabilities.begin(),
                                                 step.probabilities.begin() + kUnknownSymbol);
    return distribution(random);
}

}  // namespace

BackendError::BackendError(Kind kind, const std::string& reason)
    : std::runtime_error(reason), kind_(kind) {}

// Here, so that the type lives in this library and is one type for all that throw or catch it.
BackendError::~BackendError() = default;

Backend::~Backend() = default;

Model make_model() {
    WeightSource source;
    Model model;
    model.embedding = source.matrix(kVocabulary, kHidden, 12);
    model.recurrent = source.matrix(kHidden, kHidden, 2);
    model.output = source.matrix(kVocabulary, kHidden, 3);
    model.bias = source.matrix(kVocabulary, 1, 8);
    model.bias[kUnknownSymbol] = kNever;
    return model;
}

std::unique_ptr<Backend> make_cpu_backend(const Model& model) {
    return std::make_unique<CpuBackend>(model);
}

int symbol_of(char byte) {
    const bool printable = byte >= kFirstCharacter && byte <= kLastCharacter;
    return printable ? byte - kFirstCharacter : kUnknownSymbol;
}

char character_of(int symbol) {
    return symbol == kUnknownSymbol ? '?' : static_cast<char>(kFirstCharacter + symbol);
}

Generation generate(Backend& backend, std::string_view prompt, int count, Sampling sampling,
                    const std::atomic<bool>& cancelled, const OnCharacter& on_character) {
    if (prompt.size() > static_cast<std::size_t>(kContext)) {
        prompt.remove_prefix(prompt.size() - kContext);
    }
    std::mt19937 random(sampling == Sampling::random ? std::random_device{}() : 0U);
    Generation result;
    Stopwatch watch;
    backend.reset();
    // An empty prompt still needs something to start from.
    Step step = backend.step(kUnknownSymbol);
    result.prompt_tokens = 1;
    for (const char byte : prompt) {
        if (cancelled) return result;
        step = backend.step(symbol_of(byte));
        ++result.prompt_tokens;
    }
    result.prompt_milliseconds = watch.lap();
    for (int i = 0; i < count && !cancelled; ++i) {
        const int symbol = sampling == Sampling::greedy ? step.best : draw(step, random);
        result.text += character_of(symbol);
        if (on_character && !on_character(result.text.back())) break;
        if (i + 1 < count) step = backend.step(symbol);
    }
    result.milliseconds = watch.lap();
    return result;
}

}  // namespace hello
