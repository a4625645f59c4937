// A launch: the blocks of the grid on the cores of this machine.
#include <signal.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "machine.h"
#include "lower.h"
#include "watch.h"

namespace ptx {

namespace {

// Threads of the host that wait for work, so that a small kernel does not pay for their start.
class Pool {
public:
    static Pool& get() {
        static auto* const pool = new Pool;  // never destroyed: launches may outlive main()
        return *pool;
    }

    // Calls `work` on `count` threads, this one included, and waits for all.
    void run(unsigned count, const std::function<void()>& work) {
        if (count <= 1) return work();
        const std::lock_guard one(running_);
        std::unique_lock lock(mutex_);
        sigset_t every, before;  // the program's signals are for its own threads
        sigfillset(&every);
        pthread_sigmask(SIG_SETMASK, &every, &before);
        for (; threads_ < count - 1; ++threads_) std::thread([this] { serve(); }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        work_ = &work;
        wanted_ = pending_ = count - 1;
        wake_.notify_all();
        lock.unlock();
        work();
        lock.lock();
        // Those that have not begun are not needed any more.
        pending_ -= wanted_;
        wanted_ = 0;
        done_.wait(lock, [this] { return pending_ == 0; });
        work_ = nullptr;
    }

private:
    void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return wanted_ > 0; });
            --wanted_;
            const auto* const work = work_;
            lock.unlock();
            (*work)();
            lock.lock();
            if (--pending_ == 0) done_.notify_all();
        }
    }

    std::mutex running_, mutex_;
    std::condition_variable wake_, done_;
    const std::function<void()>* work_ = nullptr;
    unsigned threads_ = 0, wanted_ = 0, pending_ = 0;
};

// The host's own floating-point settings, as IEEE 754 has them, whatever the program that launches
// chose for its threads (flushing subnormal numbers, say).
class Environment {
public:
    Environment() { std::feholdexcept(&before_), std::fesetenv(FE_DFL_ENV); }
    ~Environment() { std::fesetenv(&before_); }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    std::fenv_t before_;
};

constexpr std::size_t kLine = 64;
std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

class Grid {
public:
    explicit Grid(const Launch& launch) : launch_(launch), program_(launch.kernel->program()) {
        check();
        // Handlers may read a little beyond the parameters.
        parameters_.resize(lines(program_.parameter_bytes) + kLine);
        std::memcpy(parameters_.data(),
                    launch.parameters == nullptr ? parameters_.data() : launch.parameters,
                    std::min<std::size_t>(launch.parameters == nullptr ? 0 : launch.parameter_bytes,
                                          program_.parameter_bytes));
    }

    Result run() {
        const auto start = std::chrono::steady_clock::now();
        const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
        const u64 blocks = launch_.grid.volume();
        auto threads = static_cast<unsigned>(
            std::min<u64>(launch_.options.threads == 0 ? cores : launch_.options.threads, blocks));
        if (launch_.options.races || launch_.options.uninitialized || launch_.overlap != nullptr)
            threads = 1;
        global_.between_blocks = !launch_.cooperative && !program_.orders && blocks > 1;
        Pool::get().run(threads, [this, threads] {
            const Environment environment;
            const double before = cpu_time();
            launch_.cooperative ? work_together(threads) : work();
            const std::lock_guard lock(mutex_);
            result_.cpu_seconds += cpu_time() - before;
        });
        result_.seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (error_ != nullptr) std::rethrow_exception(error_);
        result_.findings = std::move(findings_.all);
        return std::move(result_);
    }

private:
    static double cpu_time() {  // of this thread
        timespec now{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    }

    void check() const {
        const u64 threads = launch_.block.volume();
        if (threads == 0 || launch_.grid.volume() == 0) throw Error("a launch without threads");
        if (threads > 1024)
            throw Error("a block of " + std::to_string(threads) + " threads; 1024 are possible");
        if (launch_.parameter_bytes < program_.parameter_bytes) {
            throw Error(
                "kernel " + program_.kernel + " takes " + std::to_string(program_.parameter_bytes) +
                " bytes of parameters; the launch has " + std::to_string(launch_.parameter_bytes));
        }
    }

    Size index_of(u64 number) const {
        const Size& grid = launch_.grid;
        return {static_cast<u32>(number % grid.x), static_cast<u32>(number / grid.x % grid.y),
                static_cast<u32>(number / grid.x / grid.y)};
    }

    void start(Block& block, u64 number) {
        block.program = &program_;
        block.launch = &launch_;
        block.findings = &findings_;
        block.index = index_of(number);
        block.number = static_cast<u32>(number);
        block.threads = static_cast<u32>(launch_.block.volume());
        block.shared_size =
            std::max(program_.shared_bytes, program_.dynamic_offset + launch_.shared);
        block.local_stride = program_.local_bytes;
        block.parameters = parameters_.data();
        block.parameter_size = program_.parameter_bytes;
        const u32 warps = (block.threads + kLanes - 1) / kLanes;
        const std::size_t registers = lines(program_.register_bytes);
        const std::size_t local = lines(std::size_t{block.local_stride} * warps * kLanes);
        block.store.resize(registers * warps + lines(block.shared_size) + local + 4 * kLine);
        auto* at = reinterpret_cast<u8*>(lines(reinterpret_cast<u64>(block.store.data())));
        block.shared = at;
        // Else a register that nothing sets has what the last block on this thread of the host left.
        std::memset(at, launch_.options.fill,
                    lines(block.shared_size) + kLine + local + registers * warps);
        at += lines(block.shared_size) + kLine;
        block.local = at;
        at += local;
        block.warps.resize(warps);
        std::fill(std::begin(block.arrived), std::end(block.arrived), 0);
        block.bulk.clear();
        block.fruitless = 0;
        for (u32 i = 0; i < warps; ++i, at += registers) {
            Warp& warp = block.warps[i];
            std::vector<Path> paths = std::move(warp.paths);
            warp = Warp{};
            warp.paths = std::move(paths);
            warp.bank[0] = at;
            warp.bank[1] = program_.constants;
            warp.block = &block;
            warp.number = i;
            const u32 threads = std::min(kLanes, block.threads - i * kLanes);
            start_warp(warp, threads == kLanes ? kAll : (1U << threads) - 1);
            set_specials(warp);
        }
        const Options& options = launch_.options;
        if (findings_.full() || !(options.races || options.uninitialized)) block.watch.reset();
        else start_watch(block, options.races ? &global_ : nullptr);
    }

    void finish(Block& block) {
        variant().finish_block(block);
        if (block.watch != nullptr) settle_writes(block);
        const std::lock_guard lock(mutex_);
        for (const Warp& warp : block.warps) {
            result_.warp_instructions += warp.warp_instructions;
            result_.lane_instructions += warp.lane_instructions;
            result_.checksum += warp.checksum;
        }
    }

    // Runs `body` and keeps what it throws: the first fault is the launch's.
    template <class Body>
    void guarded(Body body) {
        try {
            body();
        } catch (Raised& raised) {
            const std::lock_guard lock(mutex_);
            if (!result_.fault) result_.fault = std::move(raised.fault);
            cancelled_ = true;
        } catch (...) {
            const std::lock_guard lock(mutex_);
            error_ = std::current_exception();
            cancelled_ = true;
        }
    }

    void prepare(Block& block) {
        if (launch_.cooperative)
            block.workspace = {reinterpret_cast<u64>(workspace_), sizeof workspace_, true};
        block.print = [this](const std::string& text) {
            const std::lock_guard lock(mutex_);
            result_.printed += text;
        };
    }

    void work() {
        Block block;
        prepare(block);
        guarded([&] {
            while (!cancelled_) {
                const u64 number = next_++;
                if (number >= launch_.grid.volume()) return;
                start(block, number);
                while (!cancelled_ && !run_block(block)) {
                }
                finish(block);
            }
        });
    }

    // Each thread of the host runs its share of the blocks in turn, a slice at a time.
    void work_together(unsigned threads) {
        std::vector<std::unique_ptr<Block>> blocks;
        guarded([&] {
            const u64 first = next_++;
            for (u64 number = first; number < launch_.grid.volume(); number += threads) {
                blocks.push_back(std::make_unique<Block>());
                prepare(*blocks.back());
                start(*blocks.back(), number);
            }
            while (!cancelled_ && !blocks.empty()) {
                for (auto& block : blocks) {
                    if (cancelled_ || !run_block(*block)) continue;
                    finish(*block);
                    block.reset();
                }
                std::erase(blocks, nullptr);
            }
        });
    }

    const Launch& launch_;
    const Program& program_;
    std::vector<u8> parameters_;
    alignas(16) u32 workspace_[4] = {sizeof workspace_, 0, 0, 0};
    std::atomic<u64> next_{0};
    std::atomic<bool> cancelled_{false};
    std::mutex mutex_;
    GlobalShadow global_;
    Findings findings_;
    Result result_;
    std::exception_ptr error_;
};

}  // namespace

Result launch(const Launch& launch) {
    if (launch.kernel == nullptr) throw Error("a launch without a kernel");
    return Grid(launch).run();
}

}  // namespace ptx
