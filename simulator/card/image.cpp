// Images of device code. The layout of fat binaries is not specified: simulator/fatbin.py says
// how it was found. Which code a card takes: simulator/selection.py.
#include "image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "unpack.h"

namespace simulator {

namespace {

constexpr std::uint32_t kRegion = 0xBA55ED50;
constexpr std::uint16_t kPtx = 1, kElf = 2;
constexpr std::uint64_t kLz4 = 1 << 13, kZstd = 1 << 15, kA = 1 << 20, kF = 1 << 21;

struct Region {
    std::uint32_t magic;
    std::uint16_t version, header;
    std::uint64_t size;  // of the entries
};

struct FatEntry {
    std::uint16_t kind, version;
    std::uint32_t header;
    std::uint64_t padded;
    std::uint32_t stored, unknown1;
    std::uint32_t unknown2, arch;
    std::uint64_t unknown3, flags, unknown4, size;
};
static_assert(sizeof(Region) == 16 && sizeof(FatEntry) == 64);

struct Candidate {
    bool ptx = false;
    int arch = 0;
    char suffix = 0;  // 'a', 'f' or none
    const FatEntry* entry = nullptr;

    bool runs_on(const Card& card) const {
        const int wanted = card.major * 10 + card.minor;
        if (suffix == 'a') return arch == wanted;
        if (arch > wanted) return false;
        return arch / 10 == card.major || (ptx && suffix == 0);
    }
    // The driver takes machine code before PTX, then the nearest version.
    int rank() const {
        return (ptx ? 0 : 1 << 20) + arch * 4 + (suffix == 'a' ? 2 : suffix == 'f' ? 1 : 0);
    }
    std::string name() const {
        std::string text = (ptx ? "compute_" : "sm_") + std::to_string(arch);
        if (suffix != 0) text += suffix;
        return text;
    }
};

std::vector<Candidate> codes(const Region* region) {
    std::vector<Candidate> found;
    const char* at = reinterpret_cast<const char*>(region) + region->header;
    const char* const end = at + region->size;
    while (at + sizeof(FatEntry) <= end) {
        const auto* const entry = reinterpret_cast<const FatEntry*>(at);
        if (entry->header < sizeof(FatEntry) || entry->padded == 0) {
            throw std::runtime_error("a fat binary is damaged");
        }
        if (entry->kind == kPtx || entry->kind == kElf) {
            const char suffix = (entry->flags & kA) != 0 ? 'a' : (entry->flags & kF) != 0 ? 'f' : 0;
            found.push_back({entry->kind == kPtx, static_cast<int>(entry->arch), suffix, entry});
        }
        at += entry->header + entry->padded;
    }
    return found;
}

// The bytes of an ELF file in memory: up to the end of what its headers name.
std::string_view elf_bytes(const char* data) {
    const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(data);
    std::uint64_t end = header->e_shoff + std::uint64_t{header->e_shnum} * header->e_shentsize;
    end = std::max(end, header->e_phoff + std::uint64_t{header->e_phnum} * header->e_phentsize);
    const auto* const sections = reinterpret_cast<const Elf64_Shdr*>(data + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
        if (sections[i].sh_type == SHT_NOBITS) continue;
        end = std::max(end, sections[i].sh_offset + sections[i].sh_size);
    }
    return {data, end};
}

bool is_elf(const char* data) { return std::memcmp(data, ELFMAG, SELFMAG) == 0; }

std::string payload(const Candidate& code) {
    const FatEntry& entry = *code.entry;
    const char* const data = reinterpret_cast<const char*>(&entry) + entry.header;
    if ((entry.flags & kZstd) != 0) return unpack_zstd({data, entry.stored}, entry.size);
    if ((entry.flags & kLz4) != 0) return unpack_lz4({data, entry.stored}, entry.size);
    if (is_elf(data)) return std::string(elf_bytes(data));
    return {data, entry.padded};
}

// PTX ends at its first zero; what follows fills up the entry.
std::string ptx_text(const Candidate& code) {
    std::string found = payload(code);
    found.resize(std::min(found.size(), found.find('\0')));
    return found;
}

DeviceCode of_region(const Region* region, const Card& card) {
    const std::vector<Candidate> all = codes(region);
    std::optional<Candidate> best;
    for (const Candidate& code : all) {
        if (code.runs_on(card) && (!best || code.rank() > best->rank())) best = code;
    }
    if (!best) return {};
    DeviceCode found{.name = best->name()};
    if (best->ptx) {
        found.ptx = ptx_text(*best);
        return found;
    }
    found.digest = sha256(payload(*best));
    // PTX for another architecture may be other code: __CUDA_ARCH__ differs.
    for (const Candidate& code : all) {
        if (code.ptx && code.arch == best->arch && code.suffix == best->suffix) {
            found.ptx = ptx_text(code);
        }
    }
    return found;
}

}  // namespace

DeviceCode device_code(const void* image, const Card& card) {
    const auto* const data = static_cast<const char*>(image);
    if (is_elf(data)) return {.name = "machine code", .digest = sha256(elf_bytes(data))};
    std::uint32_t magic = 0;
    std::memcpy(&magic, data, sizeof magic);
    if (magic == kRegion) return of_region(reinterpret_cast<const Region*>(data), card);
    std::string ptx = data;  // text, which a zero ends
    if (ptx.find(".version") == std::string::npos) {
        throw std::runtime_error("an image is no fat binary, no cubin and no PTX");
    }
    return {.name = "PTX", .ptx = std::move(ptx)};
}

}  // namespace simulator
