// The functions that hello calls, in Go. The same functions are in hello.c, hello.rs, hello.f90 and ../nodejs/hello.js.
//
//	export CGO_CFLAGS="$(pkg-config --cflags sublet)"
//	go build -buildmode=c-shared -ldflags="-extldflags=-Wl,--version-script=$PWD/functions.map" -o libhello.so .
package main

// #include <stdlib.h>
// #include <sublet_function.h>
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"
)

// Turns text into capitals.
//
//export shout
func shout(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		return reply(output, bytes.ToUpper(input))
	})
}

// Greets the name in its input, and fails without one.
//
//export greet
func greet(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		if len(input) == 0 {
			return 0, errors.New("the name is empty")
		}
		return reply(output, []byte(fmt.Sprintf("Hello, %s!", input)))
	})
}

// Executes a function of Go, with input and output in place. An error or a panic becomes the call's error: a panic that leaves
// the exported function ends the worker process.
func run(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context,
	function func(input, output []byte) (int, error)) (written C.uint32_t) {
	defer func() {
		if problem := recover(); problem != nil {
			written = fail(context, fmt.Sprint("panicked: ", problem))
		}
	}()
	input := unsafe.Slice((*byte)(in), int(size))
	output := unsafe.Slice((*byte)(out), int(C.sublet_capacity(context)))
	count, err := function(input, output)
	if err != nil {
		return fail(context, err.Error())
	}
	return C.uint32_t(count)
}

// Copies the reply to the output, and returns its size. Sublet reports a size that is larger than the output.
func reply(output, reply []byte) (int, error) {
	if len(reply) <= len(output) {
		copy(output, reply)
	}
	return len(reply), nil
}

func fail(context *C.sublet_context, message string) C.uint32_t {
	text := C.CString(message)
	defer C.free(unsafe.Pointer(text))
	return C.sublet_fail(context, text)
}

// A shared object of Go has a main package, whose main is never called.
func main() {}
