//go:build !unix

package main

import "os/exec"

// Without process groups only the child itself can be ended.

func ownGroup(*exec.Cmd) {}

func endGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }

func killGroup(*exec.Cmd) {}
