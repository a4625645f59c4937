// MD2 and the code of a message that it makes.
#pragma once

#include <string>
#include <string_view>

namespace simulator {

// MD2 (RFC 1319): 16 bytes.
std::string md2(std::string_view message);

// HMAC (RFC 2104) with MD2, whose blocks have 16 bytes; the key has 16, too.
std::string hmac_md2(std::string_view key, std::string_view message);

}  // namespace simulator
