// printf of kernels (CUDA C++ Programming Guide, "Formatted Output").
#include <cstdio>
#include <cstring>

#include "machine.h"

namespace ptx {

namespace {

// Host addresses of one lane's generic address.
const u8* host(Warp& warp, const Insn& insn, u32 lane, u64 address, u32 bytes) {
    Block& block = *warp.block;
    if ((address & kWindow) == kLocalWindow) {
        const u64 offset = address & ~kWindow;
        if (offset + bytes > block.local_stride)
            raise_window(warp, insn, lane, Space::local, offset, bytes, block.local_stride,
                         Use::read);
        return block.local + (u64{warp.number} * kLanes + lane) * block.local_stride + offset;
    }
    if ((address & kWindow) == kSharedWindow) {
        const u64 offset = address & ~kWindow;
        if (offset + bytes > block.shared_size)
            raise_window(warp, insn, lane, Space::shared, offset, bytes, block.shared_size,
                         Use::read);
        return block.shared + offset;
    }
    u64 addresses[kLanes] = {};
    addresses[lane] = address;
    find_global(warp, insn, 1U << lane, addresses, bytes, Use::read);
    return reinterpret_cast<const u8*>(address);
}

template <class T>
std::string formatted(const std::string& spec, T value) {
    char text[512];
    std::snprintf(text, sizeof text, spec.c_str(), value);
    return text;
}

}  // namespace

std::string read_string(Warp& warp, const Insn& insn, u32 lane, u64 address) {
    std::string out;
    while (out.size() < 4096) {
        const char c = static_cast<char>(*host(warp, insn, lane, address++, 1));
        if (c == '\0') break;
        out += c;
    }
    return out;
}

#pragma GCC diagnostic ignored "-Wformat-nonliteral"
void print_lanes(Warp& warp, const Insn& insn, u32 lanes, const u64* formats,
                 const u64* arguments) {
    std::string out;
    for (u32 lane = 0; lane < kLanes; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        const std::string format = read_string(warp, insn, lane, formats[lane]);
        u64 at = arguments[lane];
        const auto next = [&](u32 bytes) {  // arguments lie at multiples of their size
            at = (at + bytes - 1) / bytes * bytes;
            u64 value = 0;
            std::memcpy(&value, host(warp, insn, lane, at, bytes), bytes);
            at += bytes;
            return value;
        };
        for (std::size_t i = 0; i < format.size(); ++i) {
            if (format[i] != '%') {
                out += format[i];
                continue;
            }
            std::string spec = "%";
            u32 longs = 0;
            for (++i; i < format.size() && std::strchr("-+ #0123456789.*hlz", format[i]) != nullptr;
                 ++i) {
                if (format[i] == 'l' || format[i] == 'z') longs += format[i] == 'z' ? 2 : 1;
                else if (format[i] == '*') spec += std::to_string(static_cast<s32>(next(4)));
                else if (format[i] != 'h') spec += format[i];
            }
            const char kind = i < format.size() ? format[i] : '%';
            if (kind == '%') {
                out += '%';
            } else if (std::strchr("eEfFgGaA", kind) != nullptr) {
                const u64 bits = next(8);
                double value;
                std::memcpy(&value, &bits, sizeof value);
                out += formatted(spec + kind, value);
            } else if (kind == 's') {
                out += formatted(spec + 's', read_string(warp, insn, lane, next(8)).c_str());
            } else if (kind == 'p') {
                out += formatted(spec + 'p', reinterpret_cast<void*>(next(8)));
            } else if (kind == 'c') {
                out += static_cast<char>(next(4));
            } else if (longs > 0) {
                out += formatted(spec + "ll" + kind, next(8));
            } else {
                out += formatted(spec + kind, static_cast<u32>(next(4)));
            }
        }
    }
    warp.block->print(out);
}

}  // namespace ptx
