#include "api.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "build_info.h"
#include "json.h"

namespace hello {

namespace {

constexpr const char* kModelName = "hello";

// The request is well-formed HTTP, but not what the path wants.
class BadRequest : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// The server stops before the text is complete.
class Stopping : public std::exception {};

struct Route {
    const char* path;
    const char* method;
    http::Response (Api::*handler)(const http::Request&);
};

constexpr Route kRoutes[] = {
    {"/health", "GET", &Api::health},
    {"/props", "GET", &Api::props},
    {"/v1/models", "GET", &Api::models},
    {"/completion", "POST", &Api::completion},
    {"/v1/chat/completions", "POST", &Api::chat},
};

http::Response json_response(std::string body) {
    http::Response response;
    response.body = std::move(body);
    return response;
}

std::string string_or_null(const std::string& text) {
    return text.empty() ? "null" : json::quote(text);
}

std::string decimal(double number) {
    char text[64];
    std::snprintf(text, sizeof text, "%.3f", number);
    return text;
}

std::string timings(const Generation& generation) {
    const auto count = static_cast<double>(generation.text.size());
    const double ms = generation.milliseconds;
    return "{\"predicted_n\":" + std::to_string(generation.text.size()) +
           ",\"predicted_ms\":" + decimal(ms) +
           ",\"predicted_per_second\":" + decimal(ms > 0 ? count / ms * 1000 : 0) + "}";
}

json::Value parse_body(const http::Request& request) {
    json::Value body;
    try {
        body = json::parse(request.body);
    } catch (const json::ParseError& error) {
        throw BadRequest(std::string("invalid JSON: ") + error.what());
    }
    if (body.type != json::Value::Type::object) throw BadRequest("the body must be an object");
    const json::Value* stream = body.find("stream");
    if (stream != nullptr && stream->boolean) throw BadRequest("streaming is not supported");
    return body;
}

// Returns the member, or nullptr if it is missing or null.
const json::Value* given(const json::Value& object, const char* name) {
    const json::Value* value = object.find(name);
    return value == nullptr || value->type == json::Value::Type::null ? nullptr : value;
}

const std::string& string_member(const json::Value& object, const char* name) {
    const json::Value* value = object.find(name);
    if (value == nullptr || value->type != json::Value::Type::string) {
        throw BadRequest(std::string("'") + name + "' must be a string");
    }
    return value->string;
}

int token_count(const json::Value& body, const char* name, int fallback) {
    const json::Value* value = given(body, name);
    if (value == nullptr) return fallback;
    const double number = value->number;
    const bool valid = value->type == json::Value::Type::number && number >= 0 &&
                       number <= kMaxPredict && number == std::floor(number);
    if (!valid) {
        throw BadRequest(std::string("'") + name + "' must be a whole number from 0 to " +
                         std::to_string(kMaxPredict));
    }
    return static_cast<int>(number);
}

// Returns a message's text, from a string or from a list of text parts.
std::string content_text(const json::Value& message) {
    const json::Value* content = message.find("content");
    if (content == nullptr || content->type != json::Value::Type::array) {
        return string_member(message, "content");
    }
    std::string text;
    for (const json::Value& part : content->array) text += string_member(part, "text");
    return text;
}

std::string chat_prompt(const json::Value& body) {
    const json::Value* messages = body.find("messages");
    if (messages == nullptr || messages->type != json::Value::Type::array ||
        messages->array.empty()) {
        throw BadRequest("'messages' must be a list with at least one message");
    }
    std::string prompt;
    for (const json::Value& message : messages->array) {
        prompt += string_member(message, "role") + ": " + content_text(message) + "\n";
    }
    return prompt + "assistant: ";
}

}  // namespace

Api::Api(std::unique_ptr<Backend> backend, Properties properties, const Options& options,
         const std::atomic<bool>& cancelled)
    : backend_(std::move(backend)),
      properties_(std::move(properties)),
      options_(options),
      cancelled_(cancelled) {}

http::Response Api::handle(const http::Request& request) {
    for (const Route& route : kRoutes) {
        if (request.path != route.path) continue;
        if (request.method != route.method) {
            http::Response response =
                http::error_response(405, std::string("use ") + route.method);
            response.allow = route.method;
            return response;
        }
        try {
            return (this->*route.handler)(request);
        } catch (const BadRequest& error) {
            return http::error_response(400, error.what());
        } catch (const Stopping&) {
            return http::error_response(503, "the server is shutting down");
        }
    }
    return http::error_response(404, "no such path");
}

http::Response Api::health(const http::Request&) { return json_response("{\"status\":\"ok\"}"); }

http::Response Api::props(const http::Request&) {
    return json_response("{\"device\":" + string_or_null(properties_.device) +
                         ",\"driver\":" + string_or_null(properties_.driver) +
                         ",\"capability\":" + string_or_null(properties_.capability) +
                         ",\"backend\":" + json::quote(backend_->name()) +
                         ",\"version\":" + json::quote(kVersion) +
                         ",\"cuda\":" + json::quote(kCudaVersion) +
                         ",\"architectures\":" + json::quote(kArchitectures) + "}");
}

http::Response Api::models(const http::Request&) {
    const std::string model = std::string("{\"id\":") + json::quote(kModelName) +
                              ",\"object\":\"model\",\"created\":0,\"owned_by\":\"hello-sm120\"}";
    return json_response("{\"object\":\"list\",\"data\":[" + model + "]}");
}

http::Response Api::completion(const http::Request& request) {
    const json::Value body = parse_body(request);
    const std::string& prompt = string_member(body, "prompt");
    const Generation generation = run(prompt, token_count(body, "n_predict", options_.predict));
    return json_response("{\"content\":" + json::quote(generation.text) +
                         ",\"stop\":true,\"tokens_predicted\":" +
                         std::to_string(generation.text.size()) +
                         ",\"timings\":" + timings(generation) + "}");
}

http::Response Api::chat(const http::Request& request) {
    const json::Value body = parse_body(request);
    const std::string prompt = chat_prompt(body);
    const int newer = token_count(body, "max_completion_tokens", options_.predict);
    const Generation generation = run(prompt, token_count(body, "max_tokens", newer));
    const auto predicted = static_cast<int>(generation.text.size());
    const std::string message =
        "{\"role\":\"assistant\",\"content\":" + json::quote(generation.text) + "}";
    const std::string usage =
        "{\"prompt_tokens\":" + std::to_string(generation.prompt_tokens) +
        ",\"completion_tokens\":" + std::to_string(predicted) +
        ",\"total_tokens\":" + std::to_string(generation.prompt_tokens + predicted) + "}";
    return json_response(
        std::string("{\"id\":\"chatcmpl-hello\",\"object\":\"chat.completion\",\"created\":") +
        std::to_string(std::time(nullptr)) + ",\"model\":" + json::quote(kModelName) +
        ",\"choices\":[{\"index\":0,\"message\":" + message +
        ",\"finish_reason\":\"length\"}],\"usage\":" + usage +
        ",\"timings\":" + timings(generation) + "}");
}

Generation Api::run(const std::string& prompt, int count) {
    const std::lock_guard<std::mutex> lock(backend_mutex_);
    Generation result = generate(*backend_, prompt, count, options_.sampling, cancelled_);
    if (result.text.size() < static_cast<std::size_t>(count)) throw Stopping();
    return result;
}

}  // namespace hello
