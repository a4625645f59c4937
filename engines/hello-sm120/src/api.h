// The paths that the server answers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "hello_base.h"
#include "http.h"
#include "options.h"

namespace hello {

// What /props says of the device; empty where there is none.
struct Properties {
    std::string device;
    std::string driver;
    std::string capability;
};

class Api {
public:
    // `cancelled` ends a generation early; it must outlive this object.
    Api(std::unique_ptr<Backend> backend, Properties properties, const Options& options,
        const std::atomic<bool>& cancelled);

    // Answers one request; may be called from several threads. Throws BackendError when the
    // device fails.
    http::Response handle(const http::Request& request);

    // Handlers of single paths.
    http::Response health(const http::Request& request);
    http::Response props(const http::Request& request);
    http::Response models(const http::Request& request);
    http::Response completion(const http::Request& request);
    http::Response completions(const http::Request& request);
    http::Response chat(const http::Request& request);
    http::Response tokenize(const http::Request& request);
    http::Response detokenize(const http::Request& request);

private:
    // How an answer is laid out.
    enum class Form { native, text, chat };
    struct Question {
        Form form;
        std::string prompt;
        int count;
    };

    http::Response answer(const Question& question, bool stream);
    void stream(const Question& question, const http::Write& write);
    Generation run(const Question& question, const OnCharacter& on_character = {});

    static std::string whole(Form form, const Generation& generation);
    static std::string piece(Form form, char character);
    static std::string last(Form form, const Generation& generation);

    std::unique_ptr<Backend> backend_;
    std::mutex backend_mutex_;  // a backend holds the state of one text
    Properties properties_;
    Options options_;
    const std::atomic<bool>& cancelled_;
};

}  // namespace hello
