// zstd frames (RFC 8878, whose chapters the comments name), without dictionaries. The checksum of
// the content is not compared.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "unpack.h"

namespace simulator {

namespace {

[[noreturn]] void damaged(const char* what) {
    throw std::runtime_error(std::string("a zstd frame is damaged: ") + what);
}

int highest_bit(std::uint64_t value) { return static_cast<int>(std::bit_width(value)) - 1; }

// The bytes of the frame, in their order.
class Bytes {
public:
    explicit Bytes(std::string_view data) : data_(data) {}
    bool empty() const { return data_.empty(); }
    std::uint64_t number(std::size_t count) {  // little-endian
        const std::string_view bytes = take(count);
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < count; ++i) {
            value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
        }
        return value;
    }
    std::string_view take(std::size_t count) {
        if (count > data_.size()) damaged("it ends early");
        const std::string_view bytes = data_.substr(0, count);
        data_.remove_prefix(count);
        return bytes;
    }
    std::string_view rest() { return take(data_.size()); }
    std::string_view ahead() const { return data_; }

private:
    std::string_view data_;
};

std::uint64_t bits_at(std::string_view data, std::int64_t at, int count) {
    std::uint64_t value = 0;
    for (int done = 0; done < count;) {
        const std::int64_t bit = at + done;
        if (bit < 0) {  // before the data: zeros
            const int skip = static_cast<int>(std::min<std::int64_t>(count - done, -bit));
            done += skip;
            continue;
        }
        const auto byte = static_cast<std::size_t>(bit / 8);
        const int offset = static_cast<int>(bit % 8), some = std::min(8 - offset, count - done);
        const std::uint64_t part = byte < data.size() ? static_cast<unsigned char>(data[byte]) : 0;
        value |= (part >> offset & ((1u << some) - 1)) << done;
        done += some;
    }
    return value;
}

// Bits from the end of the data to its beginning, below the highest bit that is set in the last
// byte (4.1, "bitstream").
class BackwardBits {
public:
    explicit BackwardBits(std::string_view data) : data_(data) {
        if (data.empty() || data.back() == 0) damaged("a bitstream has no end");
        left_ = static_cast<std::int64_t>(data.size() - 1) * 8 +
                highest_bit(static_cast<unsigned char>(data.back()));
    }
    std::uint64_t read(int count) {
        left_ -= count;
        return bits_at(data_, left_, count);
    }
    std::uint64_t peek(int count) const { return bits_at(data_, left_ - count, count); }
    void skip(int count) { left_ -= count; }
    std::int64_t left() const { return left_; }  // below 0: more was read than there is

private:
    std::string_view data_;
    std::int64_t left_ = 0;
};

// ---- FSE (4.1) ----

struct FseEntry {
    std::uint8_t symbol = 0, bits = 0;
    std::uint16_t base = 0;
};

struct Fse {
    int accuracy = 0;
    std::vector<FseEntry> table;
};

// 4.1.1, "FSE Table Description": from normalized probabilities; -1 is "less than one".
Fse fse_of(const std::vector<int>& probabilities, int accuracy) {
    const std::size_t size = std::size_t{1} << accuracy;
    Fse fse{accuracy, std::vector<FseEntry>(size)};
    std::vector<std::uint32_t> next(probabilities.size());
    std::size_t high = size;
    for (std::size_t symbol = 0; symbol < probabilities.size(); ++symbol) {
        if (probabilities[symbol] != -1) continue;
        if (high == 0) damaged("a table of probabilities");
        fse.table[--high].symbol = static_cast<std::uint8_t>(symbol);
        next[symbol] = 1;
    }
    const std::size_t step = (size >> 1) + (size >> 3) + 3;
    std::size_t at = 0;
    for (std::size_t symbol = 0; symbol < probabilities.size(); ++symbol) {
        if (probabilities[symbol] <= 0) continue;
        next[symbol] = static_cast<std::uint32_t>(probabilities[symbol]);
        for (int i = 0; i < probabilities[symbol]; ++i) {
            fse.table[at].symbol = static_cast<std::uint8_t>(symbol);
            do at = (at + step) & (size - 1);
            while (at >= high);
        }
    }
    for (FseEntry& entry : fse.table) {
        const std::uint32_t state = next[entry.symbol]++;
        entry.bits = static_cast<std::uint8_t>(accuracy - highest_bit(state));
        entry.base = static_cast<std::uint16_t>((state << entry.bits) - size);
    }
    return fse;
}

Fse read_fse(Bytes& in, int most_accuracy, std::size_t most_symbols) {
    const std::string_view data = in.ahead();
    std::int64_t at = 0;
    const auto read = [&](int count) {
        const auto value = static_cast<int>(bits_at(data, at, count));
        at += count;
        return value;
    };
    const int accuracy = read(4) + 5;
    if (accuracy > most_accuracy) damaged("the accuracy of a table");
    std::vector<int> probabilities;
    for (int left = 1 << accuracy; left > 0;) {
        if (probabilities.size() >= most_symbols) damaged("a table of too many symbols");
        const int bits = highest_bit(static_cast<std::uint64_t>(left) + 1) + 1;
        int value = read(bits);
        const int low = (1 << (bits - 1)) - 1, threshold = (1 << bits) - 1 - (left + 1);
        if ((value & low) < threshold) {
            --at;
            value &= low;
        } else if (value > low) {
            value -= threshold;
        }
        const int probability = value - 1;
        left -= std::abs(probability);
        probabilities.push_back(probability);
        for (int zeros = probability == 0 ? 3 : 0; zeros == 3;) {
            zeros = read(2);
            probabilities.insert(probabilities.end(), static_cast<std::size_t>(zeros), 0);
        }
    }
    if (probabilities.size() > most_symbols) damaged("a table of too many symbols");
    in.take(static_cast<std::size_t>((at + 7) / 8));
    return fse_of(probabilities, accuracy);
}

class FseState {
public:
    FseState(const Fse& fse, BackwardBits& bits)
        : fse_(fse), state_(static_cast<std::size_t>(bits.read(fse.accuracy))) {}
    std::uint8_t symbol() const { return fse_.table[state_].symbol; }
    void next(BackwardBits& bits) {
        const FseEntry& entry = fse_.table[state_];
        state_ = entry.base + static_cast<std::size_t>(bits.read(entry.bits));
    }

private:
    const Fse& fse_;
    std::size_t state_;
};

// ---- Huffman (4.2) ----

struct HuffmanEntry {
    std::uint8_t symbol = 0, bits = 0;
};

struct Huffman {
    int most_bits = 0;
    std::vector<HuffmanEntry> table;  // by the next `most_bits` bits
};

std::vector<int> fse_weights(std::string_view packed) {
    Bytes in(packed);
    const Fse fse = read_fse(in, 6, 256);
    BackwardBits bits(in.rest());
    FseState one(fse, bits), two(fse, bits);
    std::vector<int> weights;
    // The two states take turns until one needs more bits than there are (4.2.1.2).
    for (FseState *here = &one, *other = &two; weights.size() < 255; std::swap(here, other)) {
        weights.push_back(here->symbol());
        here->next(bits);
        if (bits.left() >= 0) continue;
        weights.push_back(other->symbol());
        return weights;
    }
    damaged("a Huffman tree of too many symbols");
}

Huffman read_huffman(Bytes& in) {
    const std::size_t header = in.number(1);
    std::vector<int> weights;
    if (header < 128) {
        weights = fse_weights(in.take(header));
    } else {
        const std::string_view packed = in.take((header - 127 + 1) / 2);
        for (std::size_t i = 0; i < header - 127; ++i) {
            const auto byte = static_cast<unsigned char>(packed[i / 2]);
            weights.push_back(i % 2 == 0 ? byte >> 4 : byte & 15);
        }
    }
    std::uint32_t sum = 0;
    for (const int weight : weights) {
        if (weight > 11) damaged("a weight of a Huffman tree");
        sum += weight == 0 ? 0 : 1u << (weight - 1);
    }
    if (sum == 0) damaged("an empty Huffman tree");
    // The last weight is not written: it makes the sum a power of two.
    Huffman made{highest_bit(sum) + 1, {}};
    const std::uint32_t left = (1u << made.most_bits) - sum;
    if (made.most_bits > 11 || !std::has_single_bit(left)) damaged("the sum of a Huffman tree");
    weights.push_back(highest_bit(left) + 1);
    for (int weight = 1; weight <= made.most_bits; ++weight) {
        for (std::size_t symbol = 0; symbol < weights.size(); ++symbol) {
            if (weights[symbol] != weight) continue;
            const HuffmanEntry entry{static_cast<std::uint8_t>(symbol),
                                     static_cast<std::uint8_t>(made.most_bits + 1 - weight)};
            made.table.insert(made.table.end(), std::size_t{1} << (weight - 1), entry);
        }
    }
    if (made.table.size() != std::size_t{1} << made.most_bits) damaged("a Huffman tree");
    return made;
}

void read_huffman_stream(const Huffman& huffman, std::string_view data, std::size_t count,
                         std::string& out) {
    BackwardBits bits(data);
    for (std::size_t i = 0; i < count; ++i) {
        const HuffmanEntry& entry = huffman.table[bits.peek(huffman.most_bits)];
        out += static_cast<char>(entry.symbol);
        bits.skip(entry.bits);
    }
    if (bits.left() != 0) damaged("the length of a Huffman stream");
}

// ---- Sequences (3.1.1.3.2) ----

struct Baseline {
    std::uint32_t base;
    int bits;
};

constexpr Baseline kLiterals[] = {
    {0, 0},      {1, 0},      {2, 0},      {3, 0},      {4, 0},       {5, 0},       {6, 0},
    {7, 0},      {8, 0},      {9, 0},      {10, 0},     {11, 0},      {12, 0},      {13, 0},
    {14, 0},     {15, 0},     {16, 1},     {18, 1},     {20, 1},      {22, 1},      {24, 2},
    {28, 2},     {32, 3},     {40, 3},     {48, 4},     {64, 6},      {128, 7},     {256, 8},
    {512, 9},    {1024, 10},  {2048, 11},  {4096, 12},  {8192, 13},   {16384, 14},  {32768, 15},
    {65536, 16}};
constexpr Baseline kMatches[] = {
    {3, 0},     {4, 0},     {5, 0},      {6, 0},      {7, 0},     {8, 0},     {9, 0},    {10, 0},
    {11, 0},    {12, 0},    {13, 0},     {14, 0},     {15, 0},    {16, 0},    {17, 0},   {18, 0},
    {19, 0},    {20, 0},    {21, 0},     {22, 0},     {23, 0},    {24, 0},    {25, 0},   {26, 0},
    {27, 0},    {28, 0},    {29, 0},     {30, 0},     {31, 0},    {32, 0},    {33, 0},   {34, 0},
    {35, 1},    {37, 1},    {39, 1},     {41, 1},     {43, 2},    {47, 2},    {51, 3},   {59, 3},
    {67, 4},    {83, 4},    {99, 5},     {131, 7},    {259, 8},   {515, 9},   {1027, 10}, {2051, 11},
    {4099, 12}, {8195, 13}, {16387, 14}, {32771, 15}, {65539, 16}};

struct Field {
    int accuracy, most_accuracy;
    std::size_t symbols;
    std::vector<int> usual;  // 3.1.1.3.2.2, "Default Distributions"
};

const Field& literal_field() {
    static const Field field{6, 9, 36, {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,  2,  1,  1,  1,  2, 2,
                                        2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1}};
    return field;
}
const Field& offset_field() {
    static const Field field{5, 8, 32, {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1,  1,  1,  1, 1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1}};
    return field;
}
const Field& match_field() {
    static const Field field{6, 9, 53, {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1,  1,  1,  1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,
                                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1}};
    return field;
}

class Frame {
public:
    Frame(std::string_view packed, std::size_t size) : in_(packed), size_(size) {
        out_.reserve(size);
    }

    std::string content() {
        read_header();
        for (bool last = false; !last;) {
            const std::uint64_t header = in_.number(3);
            last = (header & 1) != 0;
            const std::size_t size = header >> 3;
            switch (header >> 1 & 3) {
                case 0: out_ += in_.take(size); break;
                case 1: out_.append(checked(size), in_.take(1)[0]); break;
                case 2: read_block(in_.take(size)); break;
                default: damaged("an unknown kind of block");
            }
            if (out_.size() > size_) damaged("it is too long");
        }
        if (out_.size() != size_) damaged("it has another size");
        return std::move(out_);
    }

private:
    std::size_t checked(std::size_t count) const {
        if (count > size_ - out_.size()) damaged("it is too long");
        return count;
    }

    void read_header() {  // 3.1.1.1
        if (in_.number(4) != 0xFD2FB528) damaged("it is none");
        const std::uint64_t descriptor = in_.number(1);
        const bool single = (descriptor >> 5 & 1) != 0;
        if (!single) in_.take(1);
        constexpr std::size_t kDictionary[] = {0, 1, 2, 4}, kSize[] = {0, 2, 4, 8};
        if (in_.number(kDictionary[descriptor & 3]) != 0) damaged("it needs a dictionary");
        const std::size_t size = kSize[descriptor >> 6];
        in_.take(size == 0 && single ? 1 : size);
    }

    void read_block(std::string_view data) {
        Bytes in(data);
        const std::string literals = read_literals(in);
        std::size_t count = in.number(1);
        if (count == 255) {
            count = in.number(2) + 0x7F00;
        } else if (count >= 128) {
            count = ((count - 128) << 8) + in.number(1);
        }
        std::size_t used = 0;
        if (count > 0) {
            const std::uint64_t modes = in.number(1);
            choose(literal_lengths_, modes >> 6 & 3, literal_field(), in);
            choose(offsets_, modes >> 4 & 3, offset_field(), in);
            choose(match_lengths_, modes >> 2 & 3, match_field(), in);
            used = execute(count, in.rest(), literals);
        }
        out_.append(literals, used);
    }

    std::string read_literals(Bytes& in) {  // 3.1.1.3.1
        const auto first = static_cast<unsigned char>(in.ahead().empty() ? 0 : in.ahead()[0]);
        const int kind = first & 3, format = first >> 2 & 3;
        if (kind < 2) {
            constexpr std::size_t kBytes[] = {1, 2, 1, 3};
            const std::uint64_t header = in.number(kBytes[format]);
            const std::size_t size = header >> (kBytes[format] == 1 ? 3 : 4);
            if (kind == 0) return std::string(in.take(size));
            return std::string(checked(size), in.take(1)[0]);
        }
        constexpr std::size_t kBytes[] = {3, 3, 4, 5};
        constexpr int kBits[] = {10, 10, 14, 18};
        const std::uint64_t header = in.number(kBytes[format]);
        const std::uint64_t mask = (1u << kBits[format]) - 1;
        const std::size_t size = checked(header >> 4 & mask);
        Bytes packed(in.take(header >> (4 + kBits[format]) & mask));
        if (kind == 2) huffman_ = read_huffman(packed);
        if (huffman_.table.empty()) damaged("a Huffman tree is missing");
        std::string literals;
        literals.reserve(size);
        if (format == 0) {
            read_huffman_stream(huffman_, packed.rest(), size, literals);
            return literals;
        }
        std::size_t sizes[3];
        for (std::size_t& each : sizes) each = packed.number(2);
        const std::size_t part = (size + 3) / 4;
        if (part * 3 > size) damaged("the length of a Huffman stream");
        for (const std::size_t each : sizes) {
            read_huffman_stream(huffman_, packed.take(each), part, literals);
        }
        read_huffman_stream(huffman_, packed.rest(), size - part * 3, literals);
        return literals;
    }

    static void choose(Fse& fse, std::uint64_t mode, const Field& field, Bytes& in) {
        if (mode == 0) fse = fse_of(field.usual, field.accuracy);
        if (mode == 1) fse = {0, {{static_cast<std::uint8_t>(in.number(1)), 0, 0}}};
        if (mode == 2) fse = read_fse(in, field.most_accuracy, field.symbols);
        if (fse.table.empty()) damaged("a table is missing");
    }

    // Returns how many literals were used.
    std::size_t execute(std::size_t count, std::string_view data, const std::string& literals) {
        BackwardBits bits(data);
        FseState literal(literal_lengths_, bits), offset(offsets_, bits),
            match(match_lengths_, bits);
        std::size_t used = 0;
        for (std::size_t i = 0; i < count; ++i) {
            if (offset.symbol() > 31 || literal.symbol() >= std::size(kLiterals) ||
                match.symbol() >= std::size(kMatches)) {
                damaged("an unknown code of a sequence");
            }
            const std::uint64_t value =
                (std::uint64_t{1} << offset.symbol()) + bits.read(offset.symbol());
            const Baseline &m = kMatches[match.symbol()], &l = kLiterals[literal.symbol()];
            const std::size_t matched = m.base + bits.read(m.bits);
            const std::size_t copied = l.base + bits.read(l.bits);
            if (copied > literals.size() - used) damaged("too few literals");
            out_.append(literals, used, copied);
            used += copied;
            repeat(distance(value, copied == 0), checked(matched));
            if (i + 1 == count) break;
            literal.next(bits);
            match.next(bits);
            offset.next(bits);
        }
        if (bits.left() != 0) damaged("the length of the sequences");
        return used;
    }

    // 3.1.1.5, "Repeat Offsets".
    std::size_t distance(std::uint64_t value, bool without_literals) {
        std::size_t found = value - 3;
        if (value <= 3) {
            const std::size_t which = value - 1 + (without_literals ? 1 : 0);
            if (which == 0) return last_[0];
            found = which == 3 ? last_[0] - 1 : last_[which];
            if (which > 1) last_[2] = last_[1];
        } else {
            last_[2] = last_[1];
        }
        last_[1] = last_[0];
        return last_[0] = found;
    }

    void repeat(std::size_t distance, std::size_t count) {
        if (distance == 0 || distance > out_.size()) damaged("an offset");
        for (std::size_t i = 0; i < count; ++i) out_ += out_[out_.size() - distance];
    }

    Bytes in_;
    std::size_t size_;
    std::string out_;
    Huffman huffman_;
    Fse literal_lengths_, offsets_, match_lengths_;
    std::size_t last_[3] = {1, 4, 8};
};

}  // namespace

std::string unpack_zstd(std::string_view packed, std::size_t size) {
    return Frame(packed, size).content();
}

}  // namespace simulator
