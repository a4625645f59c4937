#include "serve.h"

#include <httplib.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace hello {

namespace {

using httplib::Request;
using httplib::Response;
using nlohmann::json;

void send(Response& response, const json& body, int status = 200) {
    response.status = status;
    // What a message quotes of a request need not be UTF-8.
    const auto replace = json::error_handler_t::replace;
    response.set_content(body.dump(-1, ' ', false, replace), "application/json");
}

// In the form that OpenAI's clients read.
void send_error(Response& response, int status, const std::string& message) {
    const char* type = status < 500 ? "invalid_request_error" : "server_error";
    send(response, {{"error", {{"code", status}, {"message", message}, {"type", type}}}}, status);
}

// Parses a body. Nested lists take some hundred times their length.
json parse(const std::string& text) {
    return json::parse(text, [](int depth, json::parse_event_t, json&) {
        if (depth > 32) throw std::invalid_argument("the body is nested too deeply");
        return true;
    });
}

int whole_number(const json& value, const std::string& what, int highest) {
    if (value.is_number_integer() && value >= 0 && value <= highest) return value;
    throw std::invalid_argument(what + " must be a whole number from 0 to " +
                                std::to_string(highest));
}

std::string chat_prompt(const json& body) {
    std::string prompt;
    for (const json& message : body.at("messages").get_ref<const json::array_t&>()) {
        prompt += message.at("role").get<std::string>() + ": " +
                  message.at("content").get<std::string>() + "\n";
    }
    return prompt + "assistant: ";
}

// How an answer is laid out.
enum class Form { native, text, chat };

// An answer, or a piece of a streamed one.
json layout(Form form, const std::string& text, bool streamed, bool complete) {
    if (form == Form::native) return {{"content", text}, {"stop", complete}};
    json choice = {{"index", 0}, {"finish_reason", complete ? json("length") : json()}};
    const bool chat = form == Form::chat;
    const json message = {{"role", "assistant"}, {"content", text}};
    choice[!chat ? "text" : streamed ? "delta" : "message"] = chat ? message : json(text);
    const char* object = !chat ? "text_completion" : streamed ? "chat.completion.chunk"
                                                              : "chat.completion";
    return {{"id", "cmpl-hello"}, {"object", object}, {"created", std::time(nullptr)},
            {"model", "hello"}, {"choices", json::array({choice})}};
}

// The answer, or the last piece of a streamed one.
json complete_layout(Form form, const Generation& result, bool streamed) {
    const auto per_second = [](double count, double ms) { return ms > 0 ? count / ms * 1000 : 0; };
    const int prompt = result.prompt_tokens;
    const int predicted = static_cast<int>(result.text.size());
    json body = layout(form, streamed ? "" : result.text, streamed, true);
    body["tokens_predicted"] = predicted;
    body["tokens_evaluated"] = prompt;
    body["usage"] = {{"prompt_tokens", prompt}, {"completion_tokens", predicted},
                     {"total_tokens", prompt + predicted}};
    body["timings"] = {{"prompt_n", prompt}, {"prompt_ms", result.prompt_ms},
                       {"prompt_per_second", per_second(prompt, result.prompt_ms)},
                       {"predicted_n", predicted}, {"predicted_ms", result.text_ms},
                       {"predicted_per_second", per_second(predicted, result.text_ms)}};
    return body;
}

// Natural logarithms of the probabilities of all symbols, the likeliest first.
json log_probabilities(const Logits& logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    std::multimap<double, int> sorted;
    for (int i = 0; i < kVocabulary; ++i) sorted.emplace(largest + std::log(sum) - logits[i], i);
    json found = json::array();
    for (const auto& [less, symbol] : sorted) {
        found += {{"id", symbol}, {"token", std::string(1, character_of(symbol))}, {"logprob", -less}};
    }
    return found;
}

// Each character with the probabilities by which it was chosen, as llama.cpp lays it out.
json probabilities(const Generation& result) {
    json found = json::array();
    for (std::size_t i = 0; i < result.logits.size(); ++i) {
        const json all = log_probabilities(result.logits[i]);
        const int symbol = symbol_of(result.text[i]);
        json token = *std::find_if(all.begin(), all.end(),
                                   [symbol](const json& each) { return each["id"] == symbol; });
        token["top_logprobs"] = all;
        found += token;
    }
    return found;
}

class Api {
public:
    Api(Backend& backend, const Options& options) : backend_(backend), options_(options) {}

    // `limit` is the name of the member that says how many tokens to predict.
    void answer(Form form, const json& body, const std::string& prompt, const char* limit,
                Response& response) {
        const json fallback = std::stoi(options_.at("--n-predict"));
        const int count = whole_number(body.value(limit, fallback), limit, kMaxPredict);
        if (body.value("stream", false)) {
            response.set_chunked_content_provider(
                "text/event-stream", [=](std::size_t, httplib::DataSink& sink) {
                    return stream(form, prompt, count, sink);
                });
            return;
        }
        const bool keeps = form == Form::native && body.value("n_probs", 0) > 0;
        const Generation result = run(prompt, count, keeps, [](char) { return true; });
        if (cancelled) return send_error(response, 503, "the server is shutting down");
        json answer = complete_layout(form, result, false);
        if (keeps) answer["completion_probabilities"] = probabilities(result);
        send(response, answer);
    }

    std::atomic<bool> cancelled{false};

private:
    Generation run(const std::string& prompt, int count, bool keeps_logits,
                   const OnCharacter& on_character) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const bool random = options_.at("--sampling") == "random";
        return generate(backend_, prompt, count, {random, keeps_logits}, [&](char character) {
            return !cancelled && on_character(character);
        });
    }

    // Returns false to break the answer off: its status is sent already.
    bool stream(Form form, const std::string& prompt, int count, httplib::DataSink& sink) try {
        const auto event = [&sink](const std::string& data) {
            const std::string text = "data: " + data + "\n\n";
            return sink.write(text.data(), text.size());
        };
        const Generation result = run(prompt, count, false, [&](char character) {
            return event(layout(form, std::string(1, character), true, false).dump());
        });
        if (cancelled || !event(complete_layout(form, result, true).dump())) return false;
        if (form != Form::native) event("[DONE]");
        sink.done();
        return true;
    } catch (const BackendError& error) {
        std::fprintf(stderr, "a stream broke off: %s\n", error.what());
        return false;
    }

    Backend& backend_;
    std::mutex mutex_;  // a backend holds the state of one text
    const Options& options_;
};

void add_paths(httplib::Server& server, Api& api, const json& properties) {
    const auto get = [&server](const char* path, const json& body) {
        server.Get(path, [body](const Request&, Response& response) { send(response, body); });
    };
    const auto post = [&server](const char* path, const auto& handler) {
        server.Post(path, [handler](const Request& request, Response& response) {
            handler(parse(request.body), response);
        });
    };
    get("/health", {{"status", "ok"}});
    get("/props", properties);
    const json model = {{"id", "hello"}, {"object", "model"}, {"owned_by", "hello-sm120"}};
    get("/v1/models", {{"object", "list"}, {"data", json::array({model})}});
    post("/completion", [&api](const json& body, Response& response) {
        api.answer(Form::native, body, body.at("prompt"), "n_predict", response);
    });
    post("/v1/completions", [&api](const json& body, Response& response) {
        api.answer(Form::text, body, body.at("prompt"), "max_tokens", response);
    });
    post("/v1/chat/completions", [&api](const json& body, Response& response) {
        const char* limit = body.contains("max_tokens") ? "max_tokens" : "max_completion_tokens";
        api.answer(Form::chat, body, chat_prompt(body), limit, response);
    });
    post("/tokenize", [](const json& body, Response& response) {
        json tokens = json::array();
        for (const char byte : body.at("content").get<std::string>()) tokens += symbol_of(byte);
        send(response, {{"tokens", tokens}});
    });
    post("/detokenize", [](const json& body, Response& response) {
        std::string text;
        for (const json& token : body.at("tokens").get_ref<const json::array_t&>()) {
            text += character_of(whole_number(token, "a token", kVocabulary - 1));
        }
        send(response, {{"content", text}});
    });
}

void explain_errors(httplib::Server& server) {
    server.set_exception_handler([](const Request&, Response& response, std::exception_ptr thrown) {
        try {
            std::rethrow_exception(thrown);
        } catch (const BackendError& error) {
            send_error(response, 500, error.what());
        } catch (const std::exception& error) {  // of json, or about a value
            send_error(response, 400, error.what());
        }
    });
    server.set_error_handler([](const Request&, Response& response) {
        if (!response.body.empty()) return;
        send_error(response, response.status, httplib::status_message(response.status));
    });
}

void set_limits(httplib::Server& server) {
    server.set_payload_max_length(1024 * 1024);
    // One request a connection: an idle client holds no thread, and a refused body is never read
    // as the next request.
    server.set_keep_alive_max_count(1);
    server.new_task_queue = [] { return new httplib::ThreadPool(32, 32); };
    // The library's own, SO_REUSEPORT, lets two servers listen on one port.
    server.set_socket_options([](int socket) {
        const int on = 1;
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    // The library limits a body before it unpacks it, not after. Left packed, it is no JSON.
    server.set_pre_routing_handler([](const Request& request, Response&) {
        const_cast<Request&>(request).headers.erase("Content-Encoding");
        return httplib::Server::HandlerResponse::Unhandled;
    });
}

}  // namespace

void serve(Backend& backend, const json& properties, const Options& options) {
    httplib::Server server;
    Api api(backend, options);
    add_paths(server, api, properties);
    explain_errors(server);
    set_limits(server);
    const std::string& host = options.at("--host");
    int port = std::stoi(options.at("--port"));
    if (port == 0) {
        port = server.bind_to_any_port(host);
    } else if (!server.bind_to_port(host, port)) {
        throw std::runtime_error("cannot listen on " + host + " port " + std::to_string(port) +
                                 ": is it an address of this machine, and is the port free?");
    }
    std::thread([&] {
        sigset_t signals;
        pthread_sigmask(SIG_BLOCK, nullptr, &signals);
        int number = 0;
        sigwait(&signals, &number);
        api.cancelled = true;
        server.stop();
        // Connections may end by themselves for less than a second.
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        _exit(0);
    }).detach();
    std::printf("listening on %s port %d\n", host.c_str(), port);
    std::fflush(stdout);
    server.listen_after_bind();
}

}  // namespace hello
