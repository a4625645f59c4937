// A kernel as one list of statements: calls are inlined, labels are numbers.
#pragma once

#include "ast.h"

namespace ptx {

struct Step {
    Statement statement;
    std::vector<u32> targets;  // of bra, brx.idx: steps
    bool ends = false;         // ret, exit, trap: nothing follows for the threads that execute it
    bool jumps = false;        // bra, brx.idx
};

struct Flat {
    std::vector<Register> registers;
    std::vector<Step> steps;
    std::vector<std::unique_ptr<Symbol>> symbols;  // with their places
    u32 shared_bytes = 0;                          // static
    u32 dynamic_alignment = 1;
    u32 local_bytes = 0;
};

// Throws Error for a name that is not declared.
Flat flatten(ModuleData& module, u32 function);

// Registers that a statement writes and reads, the guard included.
void registers_of(const Statement& statement, std::vector<u32>* written, std::vector<u32>* read);

// Basic blocks of a flat kernel.
struct Blocks {
    struct Block {
        u32 first = 0, last = 0;  // steps first .. last - 1
        std::vector<u32> next;    // blocks; no entry: the kernel ends
        bool exits = false;       // also ends here for some threads
    };
    std::vector<Block> blocks;
    std::vector<u32> block_of;        // step -> block
    std::vector<u32> post_dominator;  // block -> block; kAll: the end of the kernel
};
Blocks find_blocks(const Flat& flat);

// register -> number of its slot among slots of its size; a register that is never used: kAll.
struct Slots {
    std::vector<u32> slot;
    u32 predicates = 0, halves = 0, words = 0, doubles = 0,
        quads = 0;  // of 4, 64, 128, 256, 512 bytes
};
Slots allocate_slots(const Flat& flat, const Blocks& blocks);

}  // namespace ptx
