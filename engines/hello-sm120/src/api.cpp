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

// The server stops, or the client goes, before the text is complete.
class Stopping : public std::exception {
public:
    const char* what() const noexcept override { return "the text is not complete"; }
};

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
    {"/v1/completions", "POST", &Api::completions},
    {"/v1/chat/completions", "POST", &Api::chat},
    {"/tokenize", "POST", &Api::tokenize},
    {"/detokenize", "POST", &Api::detokenize},
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

double per_second(double count, double milliseconds) {
    return milliseconds > 0 ? count / milliseconds * 1000 : 0;
}

std::string timings(const Generation& generation) {
    const auto prompt = static_cast<double>(generation.prompt_tokens);
    const auto count = static_cast<double>(generation.text.size());
    const double prompt_ms = generation.prompt_milliseconds;
    const double ms = generation.milliseconds;
    return "{\"prompt_n\":" + std::to_string(generation.prompt_tokens) +
           ",\"prompt_ms\":" + decimal(prompt_ms) +
           ",\"prompt_per_second\":" + decimal(per_second(prompt, prompt_ms)) +
           ",\"predicted_n\":" + std::to_string(generation.text.size()) +
           ",\"predicted_ms\":" + decimal(ms) +
           ",\"predicted_per_second\":" + decimal(per_second(count, ms)) + "}";
}

std::string usage(const Generation& generation) {
    const auto predicted = static_cast<int>(generation.text.size());
    return "{\"prompt_tokens\":" + std::to_string(generation.prompt_tokens) +
           ",\"completion_tokens\":" + std::to_string(predicted) +
           ",\"total_tokens\":" + std::to_string(generation.prompt_tokens + predicted) + "}";
}

// An answer of OpenAI's API around its one choice, without the closing brace.
std::string openai(const char* object, const std::string& choice) {
    return std::string("{\"id\":\"cmpl-hello\",\"object\":\"") + object +
           "\",\"created\":" + std::to_string(std::time(nullptr)) +
           ",\"model\":" + json::quote(kModelName) + ",\"choices\":[{\"index\":0," + choice + "}]";
}

json::Value parse_body(const http::Request& request) {
    json::Value body;
    try {
        body = json::parse(request.body);
    } catch (const json::ParseError& error) {
        throw BadRequest(std::string("invalid JSON: ") + error.what());
    }
    if (body.type != json::Value::Type::object) throw BadRequest("the body must be an object");
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

bool wants_stream(const json::Value& body) {
    const json::Value* stream = given(body, "stream");
    if (stream != nullptr && stream->type != json::Value::Type::boolean) {
        throw BadRequest("'stream' must be true or false");
    }
    return stream != nullptr && stream->boolean;
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
    const int count = token_count(body, "n_predict", options_.predict);
    return answer({Form::native, prompt, count}, wants_stream(body));
}

http::Response Api::completions(const http::Request& request) {
    const json::Value body = parse_body(request);
    const std::string& prompt = string_member(body, "prompt");
    const int count = token_count(body, "max_tokens", options_.predict);
    return answer({Form::text, prompt, count}, wants_stream(body));
}

http::Response Api::chat(const http::Request& request) {
    const json::Value body = parse_body(request);
    const std::string prompt = chat_prompt(body);
    const int newer = token_count(body, "max_completion_tokens", options_.predict);
    const int count = token_count(body, "max_tokens", newer);
    return answer({Form::chat, prompt, count}, wants_stream(body));
}

http::Response Api::tokenize(const http::Request& request) {
    const json::Value body = parse_body(request);
    std::string tokens;
    for (const char byte : string_member(body, "content")) {
        tokens += (tokens.empty() ? "" : ",") + std::to_string(symbol_of(byte));
    }
    return json_response("{\"tokens\":[" + tokens + "]}");
}

http::Response Api::detokenize(const http::Request& request) {
    const json::Value body = parse_body(request);
    const json::Value* tokens = body.find("tokens");
    if (tokens == nullptr || tokens->type != json::Value::Type::array) {
        throw BadRequest("'tokens' must be a list");
    }
    std::string text;
    for (const json::Value& token : tokens->array) {
        const double number = token.number;
        const bool valid = token.type == json::Value::Type::number && number >= 0 &&
                           number < kVocabulary && number == std::floor(number);
        if (!valid) {
            throw BadRequest("a token is a whole number below " + std::to_string(kVocabulary));
        }
        text += character_of(static_cast<int>(number));
    }
    return json_response("{\"content\":" + json::quote(text) + "}");
}

http::Response Api::answer(const Question& question, bool streamed) {
    if (!streamed) return json_response(whole(question.form, run(question)));
    http::Response response;
    response.events = [this, question](const http::Write& write) { stream(question, write); };
    return response;
}

void Api::stream(const Question& question, const http::Write& write) {
    bool there = true;
    const auto send = [&](const std::string& data) {
        there = there && write("data: " + data + "\n\n");
        return there;
    };
    const Generation generation =
        run(question, [&](char character) { return send(piece(question.form, character)); });
    send(last(question.form, generation));
    if (question.form != Form::native) send("[DONE]");
}

Generation Api::run(const Question& question, const OnCharacter& on_character) {
    const std::lock_guard<std::mutex> lock(backend_mutex_);
    Generation result = generate(*backend_, question.prompt, question.count, options_.sampling,
                                 cancelled_, on_character);
    if (result.text.size() < static_cast<std::size_t>(question.count)) throw Stopping();
    return result;
}

std::string Api::whole(Form form, const Generation& generation) {
    const std::string text = json::quote(generation.text);
    const std::string facts = ",\"timings\":" + timings(generation) + "}";
    switch (form) {
        case Form::native:
            return "{\"content\":" + text + ",\"stop\":true,\"tokens_predicted\":" +
                   std::to_string(generation.text.size()) + ",\"tokens_evaluated\":" +
                   std::to_string(generation.prompt_tokens) + facts;
        case Form::text:
            return openai("text_completion",
                          "\"text\":" + text + ",\"finish_reason\":\"length\"") +
                   ",\"usage\":" + usage(generation) + facts;
        default:
            return openai("chat.completion", "\"message\":{\"role\":\"assistant\",\"content\":" +
                                                 text + "},\"finish_reason\":\"length\"") +
                   ",\"usage\":" + usage(generation) + facts;
    }
}

std::string Api::piece(Form form, char character) {
    const std::string text = json::quote(std::string(1, character));
    switch (form) {
        case Form::native: return "{\"content\":" + text + ",\"stop\":false}";
        case Form::text:
            return openai("text_completion", "\"text\":" + text + ",\"finish_reason\":null") + "}";
        default:
            return openai("chat.completion.chunk",
                          "\"delta\":{\"content\":" + text + "},\"finish_reason\":null") +
                   "}";
    }
}

std::string Api::last(Form form, const Generation& generation) {
    const std::string facts =
        ",\"usage\":" + usage(generation) + ",\"timings\":" + timings(generation) + "}";
    switch (form) {
        case Form::native:
            return "{\"content\":\"\",\"stop\":true,\"tokens_predicted\":" +
                   std::to_string(generation.text.size()) + facts;
        case Form::text:
            return openai("text_completion", "\"text\":\"\",\"finish_reason\":\"length\"") + facts;
        default:
            return openai("chat.completion.chunk",
                          "\"delta\":{},\"finish_reason\":\"length\"") +
                   facts;
    }
}

}  // namespace hello
