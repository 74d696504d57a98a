// Text and numbers as a page shows them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace kinfolk {

/// Any bytes as valid UTF-8: what is not UTF-8 becomes U+FFFD (one for each byte that cannot go on), control characters
/// other than tab and line feed become their pictures (U+2400...).
std::string valid_utf8(std::string_view bytes);
/// The above, with & < > " ' escaped: safe inside elements and quoted attributes of HTML and SVG.
std::string escape(std::string_view bytes);

/// The shortest text with at most `digits` digits after the point that is not longer than needed: 1.5, 2, -0.25; "–"
/// for NaN.
std::string number_text(double value, int digits);
/// Exactly `digits` digits after the point; "–" for what is not finite.
std::string fixed_text(double value, int digits);
/// Plain up to 99999, then 131k, 10.5M, 2.1G, 3.4T, 1.2P; "–" for what is not finite.
std::string count_text(double value);
/// 512 B, 1.5 KiB, 64 MiB.
std::string bytes_text(double bytes);
/// 0.4 s, 12 s, 3 min 20 s, 2 h 05 min.
std::string duration_text(double seconds);

}  // namespace kinfolk
