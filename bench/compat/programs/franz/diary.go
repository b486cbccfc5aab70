package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

const clockMonotonic = 1

// diary has one line for each thing that happens, stamped with the machine's monotonic clock; lines survive a kill.
type diary struct {
	mutex sync.Mutex
	file  *os.File
}

func openDiary(path string) (*diary, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return &diary{file: file}, err
}

// seconds reads the clock itself, because Go keeps its own reading of it to itself.
func seconds() float64 {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return float64(now.Sec) + float64(now.Nsec)/1e9
}

func (d *diary) write(words ...any) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	fmt.Fprintf(d.file, "%.6f %s", seconds(), fmt.Sprintln(words...))
}

// parse the options of a program: --name value, again and again.
func parse(arguments []string) map[string]string {
	found := map[string]string{}
	for at := 0; at+1 < len(arguments); at += 2 {
		found[strings.TrimPrefix(arguments[at], "--")] = arguments[at+1]
	}
	return found
}
