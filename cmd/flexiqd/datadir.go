package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// dataDir is the daemon's folder while it is locked for this process.
type dataDir struct {
	path string
	lock *os.File
}

// lockDataDir creates the folder if need be, readable by its owner only, and
// takes its lock. The lock guards the embedded NATS server's files and the
// credentials file; the kernel drops it when the process dies, however it dies.
func lockDataDir(path string) (*dataDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the data folder: %w", err)
	}
	name := filepath.Join(path, "lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the data folder's lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(name)
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("the data folder %s is in use by another flexiqd%s; stop it, or choose another folder with --data-dir",
				path, ownerText(owner))
		}
		return nil, fmt.Errorf("cannot lock the data folder %s: %w", path, err)
	}
	// The process id is only for the message above.
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return &dataDir{path: path, lock: f}, nil
}

// lockCredentials waits for the lock of the credentials file, which is held only
// while the file or its tokens change. Unlike the folder's lock it is also taken
// beside a running daemon.
func lockCredentials(dir string) (free func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "credentials.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of the credentials file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot lock the credentials file: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

func ownerText(pid []byte) string {
	if p := strings.TrimSpace(string(pid)); p != "" {
		return " (process " + p + ")"
	}
	return ""
}

// Close gives the folder free.
func (d *dataDir) Close() error { return d.lock.Close() }
