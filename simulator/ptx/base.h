// Names of integers and types of PTX that all files share.
#pragma once

#include <cstdint>
#include <string_view>

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using u128 = unsigned __int128;

constexpr u32 kLanes = 32;
constexpr u32 kAll = ~u32{0};

// PTX ISA 5.1 "State Spaces".
enum class Space : u8 { none, generic, global, constant, shared, local, param };

// Generic addresses (PTX ISA 6.4.1.1).  A global address is an address of this process, so the
// highest byte is 0; the windows of the other spaces are where no process has memory.
constexpr u64 kWindow = ~u64{0} << 56;
constexpr u64 kSharedWindow = u64{1} << 56;
constexpr u64 kLocalWindow = u64{2} << 56;
constexpr u64 kParamWindow = u64{3} << 56;
constexpr u64 kFunctionWindow = u64{4} << 56;  // no memory: the numbers of functions

// PTX ISA 5.2.1 "Fundamental Types", 5.2.3 "Alternate Floating-Point Data Formats".
enum class Type : u8 {
    none,
    pred,
    b8,
    b16,
    b32,
    b64,
    b128,
    u8_,
    u16_,
    u32_,
    u64_,
    s8_,
    s16_,
    s32_,
    s64_,
    f16,
    f16x2,
    bf16,
    bf16x2,
    f32,
    f64,
    f32x2,
    tf32,
    u16x2,
    s16x2,
    e4m3,
    e5m2,
    e2m1,
    e2m3,
    e3m2,
    ue8m0,
    ue4m3,
    e4m3x2,
    e5m2x2,
    e2m1x2,
    e2m3x2,
    e3m2x2,
    ue8m0x2,
    e4m3x4,
    e5m2x4,
    e2m1x4,
    u4,
    s4,
    u2,
    s2,
    b1,
};

// Type::none: the word names no type.
Type parse_type(std::string_view word);
// Bits that a value of the type takes in a register or in memory; 0: pred.
u32 bits_of(Type type);
bool is_signed(Type type);
bool is_float(Type type);

}  // namespace ptx
