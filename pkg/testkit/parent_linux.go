package testkit

import "syscall"

// dieWithParent ends a server whose test was killed.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
