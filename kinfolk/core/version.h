// The version that files of this program say they are from; CMake's project has the same.
#pragma once

namespace kinfolk {

inline constexpr auto kVersion = "0.1.0";
inline constexpr auto kSessionFormats = "kinfolk-session-";  ///< what formats of sessions begin with; then a number

}  // namespace kinfolk
