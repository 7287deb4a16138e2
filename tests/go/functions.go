// Functions in Go that the tests call: they fail in several ways, use several threads, and allocate memory.
package main

// #include <stdlib.h>
// #include <sublet_function.h>
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Returns its input.
//
//export echo
func echo(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		copy(output, input)
		return len(input), nil
	})
}

// Fails with its input.
//
//export fails
func fails(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		return 0, errors.New(string(input))
	})
}

// Panics, which becomes an error of the call.
//
//export panics
func panics(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		return int(output[len(output)]), nil
	})
}

// Reads at a null pointer, which is a panic as well.
//
//export nil_pointer
func nil_pointer(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		var missing *int
		return *missing, nil
	})
}

// Panics without anything that recovers, which ends the process.
//
//export gone
func gone(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	panic("no further")
}

// Panics on a goroutine of its own, which ends the process.
//
//export elsewhere
func elsewhere(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		var waiting sync.WaitGroup
		waiting.Add(1)
		go func() { panic("nothing recovers here") }()
		waiting.Wait()
		return 0, nil
	})
}

// Adds the numbers from 1 to its input on eight goroutines, and returns the sum.
//
//export sums
func sums(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		const goroutines = 8
		last := binary.LittleEndian.Uint64(input)
		parts := make(chan uint64, goroutines)
		for first := uint64(1); first <= goroutines; first++ {
			go func(first uint64) {
				sum := uint64(0)
				for number := first; number <= last; number += goroutines {
					sum += number
					runtime.Gosched()
				}
				parts <- sum
			}(first)
		}
		sum := uint64(0)
		for part := 0; part < goroutines; part++ {
			sum += <-parts
		}
		binary.LittleEndian.PutUint64(output, sum)
		return 8, nil
	})
}

// Allocates this many mebibytes, writes them, and has them collected.
//
//export memory
func memory(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		mebibytes := make([][]byte, binary.LittleEndian.Uint64(input))
		for index := range mebibytes {
			mebibytes[index] = make([]byte, 1<<20)
			for at := range mebibytes[index] {
				mebibytes[index][at] = 1
			}
		}
		written := len(mebibytes)
		mebibytes = nil
		runtime.GC()
		binary.LittleEndian.PutUint64(output, uint64(written))
		return 8, nil
	})
}

// The number of processors that Go computes on.
//
//export processors
func processors(in unsafe.Pointer, size C.uint32_t, out unsafe.Pointer, context *C.sublet_context) C.uint32_t {
	return run(in, size, out, context, func(input, output []byte) (int, error) {
		binary.LittleEndian.PutUint64(output, uint64(runtime.GOMAXPROCS(0)))
		return 8, nil
	})
}

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

func fail(context *C.sublet_context, message string) C.uint32_t {
	text := C.CString(message)
	defer C.free(unsafe.Pointer(text))
	return C.sublet_fail(context, text)
}

func main() {}
