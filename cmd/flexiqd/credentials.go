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

// pendingCredentials is where new tokens wait until the store has them and the
// ones that they replace have ended.
func pendingCredentials(dir string) string { return credentialsFile(dir) + ".new" }

// mintFirst makes a platform token and one of the default namespace that may do
// everything.
func mintFirst(c credentials) (credentials, []store.Token, error) {
	now := time.Now()
	tenant, t, err := auth.Mint(namespace.Default, []auth.Scope{auth.Produce, auth.Work, auth.Inspect, auth.Admin}, "default", credentialsLife, "", now)
	if err != nil {
		return c, nil, err
	}
	platform, p, err := auth.Mint("", []auth.Scope{auth.Platform}, "platform", credentialsLife, "", now)
	if err != nil {
		return c, nil, err
	}
	c.Tokens = map[string]string{"platform": platform, "default": tenant}
	return c, []store.Token{t, p}, nil
}

// firstTokens makes the installation's first tokens when the store has none, and
// reports whether it did. The file is on disk, under its pending name, before the
// store knows the tokens: a crash between the two leaves either a file that the
// next start adopts or an empty store that it fills again, and never an
// installation that nobody can enter.
func firstTokens(ctx context.Context, tokens store.Tokens, dir string, c credentials) (bool, error) {
	if done, err := adopt(ctx, tokens, dir); done || err != nil {
		return false, err
	}
	c, first, err := mintFirst(c)
	if err != nil {
		return false, err
	}
	if err := writePrivate(pendingCredentials(dir), c); err != nil {
		return false, err
	}
	made, err := tokens.Bootstrap(ctx, first)
	if err != nil {
		return false, err
	}
	if !made {
		return false, os.Remove(pendingCredentials(dir))
	}
	return true, os.Rename(pendingCredentials(dir), credentialsFile(dir))
}

// rotateTokens replaces the installation's first tokens. The last step of a
// rotation that a crash interrupted is taken by whoever comes next, here or at
// the start of a daemon.
func rotateTokens(ctx context.Context, tokens store.Tokens, dir string, c credentials) error {
	if _, err := adopt(ctx, tokens, dir); err != nil {
		return err
	}
	c, fresh, err := mintFirst(c)
	if err != nil {
		return err
	}
	if err := writePrivate(pendingCredentials(dir), c); err != nil {
		return err
	}
	for _, t := range fresh { // the platform token last: adopt goes by it
		if err := tokens.PutToken(ctx, t, "", rotationRecord(t)); err != nil {
			return err
		}
	}
	done, err := adopt(ctx, tokens, dir)
	if err == nil && !done {
		err = errors.New("the store does not know the new tokens")
	}
	return err
}

func rotationRecord(t store.Token) store.Record {
	return store.Record{Namespace: t.Namespace, Operation: "rotate-credentials", TargetKind: "token", Target: t.ID}
}

// adopt finishes what put new tokens into the pending file and into the store:
// they become the ones of the credentials file, and the ones that they replace
// are revoked. It reports false when there is nothing to finish.
func adopt(ctx context.Context, tokens store.Tokens, dir string) (bool, error) {
	c, err := readCredentials(pendingCredentials(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil { // cut off by the crash, so the store never saw its tokens
		return false, nil
	}
	id, err := tokenID(c.Tokens["platform"])
	if err != nil {
		return false, nil
	}
	if _, err := tokens.Token(ctx, id); err != nil {
		if fault.Is(err, fault.NotFound) {
			return false, dropHalf(ctx, tokens, c)
		}
		return false, err
	}
	if err := replaceCredentials(dir, c); err != nil {
		return false, err
	}
	for name, ns := range map[string]string{"platform": "", "default": namespace.Default} {
		if err := revokeOthers(ctx, tokens, ns, name, c.Tokens[name]); err != nil {
			return false, err
		}
	}
	return true, os.Remove(pendingCredentials(dir))
}

// dropHalf ends the token of a pending file whose platform token the store never
// saw: the file goes, and nobody would know that one's text.
func dropHalf(ctx context.Context, tokens store.Tokens, c credentials) error {
	id, err := tokenID(c.Tokens["default"])
	if err != nil {
		return nil
	}
	half := store.Token{ID: id, Namespace: namespace.Default}
	if err := tokens.RevokeToken(ctx, half.Namespace, half.ID, rotationRecord(half)); err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

// revokeOthers ends the tokens of a name that an earlier start or rotation made:
// no other token was made by nobody.
func revokeOthers(ctx context.Context, tokens store.Tokens, ns, name, text string) error {
	id, err := tokenID(text)
	if err != nil {
		return err
	}
	for after := ""; ; {
		page, err := tokens.ListTokens(ctx, ns, after, 500)
		if err != nil {
			return err
		}
		for _, t := range page.Items {
			if t.CreatedBy != "" || t.Name != name || t.ID == id || !t.RevokedAt.IsZero() {
				continue
			}
			if err := tokens.RevokeToken(ctx, ns, t.ID, rotationRecord(t)); err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
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
	return replaceCredentials(dir, *c)
}

// replaceCredentials writes the file as a whole or not at all.
func replaceCredentials(dir string, c credentials) error {
	next := credentialsFile(dir) + ".tmp"
	if err := writePrivate(next, c); err != nil {
		return err
	}
	return os.Rename(next, credentialsFile(dir))
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
