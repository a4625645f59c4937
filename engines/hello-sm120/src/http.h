// HTTP/1.1 over POSIX sockets: one request a connection, one thread a connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

namespace hello::http {

inline constexpr std::size_t kMaxHeadBytes = 16 * 1024;
inline constexpr std::size_t kMaxBodyBytes = 1024 * 1024;
inline constexpr std::size_t kMaxConnections = 32;

struct Request {
    std::string method;
    std::string path;  // without the query
    std::string body;
};

// Sends a part of an answer; returns false if the client has gone or the server stops.
using Write = std::function<bool(std::string_view)>;

struct Response {
    int status = 200;
    std::string body;   // JSON
    std::string allow;  // the methods that would do, with status 405
    // If set, it writes server-sent events in place of the body. What it throws ends the answer.
    std::function<void(const Write&)> events;
};

// Answers one request; called from several threads at once. What it throws becomes a 500.
using Handler = std::function<Response(const Request&)>;

// Returns the response for an error, in the form that OpenAI clients read.
Response error_response(int status, const std::string& message);

// Why no socket could be opened.
class ListenError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// SIGTERM or SIGINT, as something that threads can wait for. At most one per process.
class StopSignal {
public:
    // Takes the two signals over, and ignores SIGPIPE. Throws std::system_error.
    StopSignal();

    // True from the first signal on.
    const std::atomic<bool>& requested() const;

    // A descriptor that is readable, forever, from the first signal on.
    int descriptor() const { return descriptor_; }

private:
    int descriptor_;
};

class Server {
public:
    // Listens on a host name or address and a port (0: any that is free). `stop` must outlive the
    // server. Throws ListenError.
    Server(const std::string& host, int port, const StopSignal& stop, Handler handler);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // Returns the port that it listens on.
    int port() const;

    // Serves until the stop signal, then lets connections finish for less than a second. Returns
    // false if some have not: then the process may only exit without destroying anything.
    bool run();

private:
    struct Connection {
        std::thread thread;
        std::atomic<bool> done{false};
    };

    void accept_connection();
    void start_connection(int descriptor);
    void join_finished();

    int listener_ = -1;
    const StopSignal& stop_;
    Handler handler_;
    std::list<Connection> connections_;
};

}  // namespace hello::http
