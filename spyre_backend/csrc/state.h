// Life cycle of the device in this process.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <functional>

namespace spyre {

// True in a child that was forked after the parent had used the device.
bool in_bad_fork();
// Throws in such a child.
void check_not_forked();
// Marks the device as used and runs the Python side of the start, once.
void initialise();
bool is_initialised();
void set_initialise_callback(std::function<void()> callback);

// Throws the Python class spyre_backend.errors.UnsupportedDtype (D1.6).
[[noreturn]] void throw_unsupported_dtype(c10::ScalarType dtype);
// Throws what spyre_backend.device.refusals makes of a copy on the device whose
// view begins inside a stick (D2.7, #3798).
[[noreturn]] void throw_mid_stick_copy(
    int64_t offset,
    int64_t elements_per_stick,
    c10::IntArrayRef sizes,
    c10::ScalarType dtype);
void check_dtype(c10::ScalarType dtype);
// Dtypes that check_dtype lets pass (D1.6).
c10::ArrayRef<c10::ScalarType> supported_dtypes();

// Issues `message` as a Python warning of class spyre_backend.errors.<category>.
void warn_python(const char* category, const char* message);

} // namespace spyre
