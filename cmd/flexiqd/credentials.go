package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
	"flexiq/pkg/namespace"
	"flexiq/pkg/store"
)

// credentialsLife is how long the first tokens live.
const credentialsLife = 365 * 24 * time.Hour

// credentials is the file that lets the owner of the data folder in.
type credentials struct {
	NATSURL string            `json:"nats_url"`
	HTTPURL string            `json:"http_url"`
	Tokens  map[string]string `json:"tokens"` // by "platform" and "default"
}

func credentialsFile(dir string) string { return filepath.Join(dir, "credentials.json") }

// firstTokens makes the installation's first tokens when the store has none.
// The file is on disk, under its temporary name, before the store knows the
// tokens: a crash between the two leaves either a file that the next start
// adopts or an empty store that it fills again, and never an installation that
// nobody can enter.
func firstTokens(ctx context.Context, tokens store.Tokens, dir string, c credentials) error {
	pending := credentialsFile(dir) + ".new"
	if done, err := adopt(ctx, tokens, dir, pending); done || err != nil {
		return err
	}
	now := time.Now()
	platform, p, err := auth.Mint("", []auth.Scope{auth.Platform}, "platform", credentialsLife, "", now)
	if err != nil {
		return err
	}
	all := []auth.Scope{auth.Produce, auth.Work, auth.Inspect, auth.Admin}
	tenant, t, err := auth.Mint(namespace.Default, all, "default", credentialsLife, "", now)
	if err != nil {
		return err
	}
	c.Tokens = map[string]string{"platform": platform, "default": tenant}
	if err := writePrivate(pending, c); err != nil {
		return err
	}
	made, err := tokens.Bootstrap(ctx, []store.Token{p, t})
	if err != nil {
		return err
	}
	if !made {
		return os.Remove(pending)
	}
	return os.Rename(pending, credentialsFile(dir))
}

// adopt finishes what a crash interrupted: a file that waits under its
// temporary name while the store already knows its tokens.
func adopt(ctx context.Context, tokens store.Tokens, dir, pending string) (bool, error) {
	c, err := readCredentials(pending)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil { // cut off by the crash, so the store never saw its tokens
		return false, nil
	}
	parts, err := auth.Parse(c.Tokens["platform"])
	if err != nil {
		return false, nil
	}
	if _, err := tokens.Token(ctx, parts.ID); err != nil {
		if fault.Is(err, fault.NotFound) {
			return false, nil
		}
		return false, err
	}
	return true, os.Rename(pending, credentialsFile(dir))
}

func readCredentials(path string) (credentials, error) {
	var c credentials
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// checkPrivate refuses a credentials file that others can read.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o, so others can read it: make it 0600, and revoke its tokens if others are on this host", path, mode)
	}
	return nil
}

// refresh writes the addresses of this start into the file, when they changed.
func (c *credentials) refresh(dir, natsURL, httpURL string) error {
	if c.NATSURL == natsURL && c.HTTPURL == httpURL {
		return nil
	}
	c.NATSURL, c.HTTPURL = natsURL, httpURL
	pending := credentialsFile(dir) + ".tmp"
	if err := writePrivate(pending, *c); err != nil {
		return err
	}
	return os.Rename(pending, credentialsFile(dir))
}

// writePrivate writes a file that only its owner can read, and waits until the
// disk has it.
func writePrivate(path string, c credentials) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write the credentials file: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// tokenID is the id in a token's text.
func tokenID(text string) (string, error) {
	parts, err := auth.Parse(text)
	return parts.ID, err
}
