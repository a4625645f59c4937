// Names and sizes of PTX's types (PTX ISA 5.2, tables "Fundamental Type Specifiers" and
// "Alternate floating-point data formats").
#include <utility>

#include "base.h"

namespace ptx {

Type parse_type(std::string_view word) {
    using T = Type;
    static constexpr std::pair<std::string_view, T> kNames[] = {{"u32", T::u32_},
                                                                {"b32", T::b32},
                                                                {"s32", T::s32_},
                                                                {"f32", T::f32},
                                                                {"u64", T::u64_},
                                                                {"b64", T::b64},
                                                                {"s64", T::s64_},
                                                                {"f64", T::f64},
                                                                {"u16", T::u16_},
                                                                {"b16", T::b16},
                                                                {"s16", T::s16_},
                                                                {"f16", T::f16},
                                                                {"u8", T::u8_},
                                                                {"b8", T::b8},
                                                                {"s8", T::s8_},
                                                                {"pred", T::pred},
                                                                {"b128", T::b128},
                                                                {"f16x2", T::f16x2},
                                                                {"bf16", T::bf16},
                                                                {"bf16x2", T::bf16x2},
                                                                {"tf32", T::tf32},
                                                                {"f32x2", T::f32x2},
                                                                {"u16x2", T::u16x2},
                                                                {"s16x2", T::s16x2},
                                                                {"e4m3", T::e4m3},
                                                                {"e5m2", T::e5m2},
                                                                {"e2m1", T::e2m1},
                                                                {"e2m3", T::e2m3},
                                                                {"e3m2", T::e3m2},
                                                                {"ue8m0", T::ue8m0},
                                                                {"ue4m3", T::ue4m3},
                                                                {"e4m3x2", T::e4m3x2},
                                                                {"e5m2x2", T::e5m2x2},
                                                                {"e2m1x2", T::e2m1x2},
                                                                {"e2m3x2", T::e2m3x2},
                                                                {"e3m2x2", T::e3m2x2},
                                                                {"ue8m0x2", T::ue8m0x2},
                                                                {"e4m3x4", T::e4m3x4},
                                                                {"e5m2x4", T::e5m2x4},
                                                                {"e2m1x4", T::e2m1x4},
                                                                {"u4", T::u4},
                                                                {"s4", T::s4},
                                                                {"u2", T::u2},
                                                                {"s2", T::s2},
                                                                {"b1", T::b1}};
    for (const auto& [name, type] : kNames) {
        if (name == word) return type;
    }
    return T::none;
}

u32 bits_of(Type type) {
    using T = Type;
    switch (type) {
        case T::none:
        case T::pred: return 0;
        case T::b1: return 1;
        case T::u2:
        case T::s2: return 2;
        case T::u4:
        case T::s4: return 4;
        case T::b8:
        case T::u8_:
        case T::s8_:
        case T::e4m3:
        case T::e5m2:
        case T::e2m1:
        case T::e2m3:
        case T::e3m2:
        case T::ue8m0:
        case T::ue4m3:
        case T::e2m1x2: return 8;
        case T::b16:
        case T::u16_:
        case T::s16_:
        case T::f16:
        case T::bf16:
        case T::e4m3x2:
        case T::e5m2x2:
        case T::e2m3x2:
        case T::e3m2x2:
        case T::e2m1x4:
        case T::ue8m0x2: return 16;
        case T::b64:
        case T::u64_:
        case T::s64_:
        case T::f64:
        case T::f32x2: return 64;
        case T::b128: return 128;
        default: return 32;
    }
}

bool is_signed(Type type) {
    return type == Type::s8_ || type == Type::s16_ || type == Type::s32_ || type == Type::s64_ ||
           type == Type::s4 || type == Type::s2;
}

bool is_float(Type type) {
    switch (type) {
        case Type::f16:
        case Type::f16x2:
        case Type::bf16:
        case Type::bf16x2:
        case Type::f32:
        case Type::f64:
        case Type::tf32: return true;
        default: return false;
    }
}

}  // namespace ptx
