//go:build !linux

package testkit

import "syscall"

// dieWithParent needs a kernel that tells of a parent's end: elsewhere a server
// whose test was killed stays.
func dieWithParent(*syscall.SysProcAttr) {}
