package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"flexiq/pkg/fault"
)

// The environment variables that name a server, a token, and a file with the CA
// certificates by which the server is known.
const (
	EnvServer = "FLEXIQ_SERVER"
	EnvToken  = "FLEXIQ_TOKEN"
	EnvCAFile = "FLEXIQ_CA_FILE"
)

// Context is a named server with a token for it, kept in a file that only its
// owner can read.
type Context struct {
	Server string `json:"server"`
	Token  string `json:"token"`
	// PlatformToken is for calls that span namespaces. Empty: there is none.
	PlatformToken string `json:"platform_token,omitempty"`
	// CAFile has the CA certificates by which the server is known. Empty: the
	// system's count.
	CAFile string `json:"ca_file,omitempty"`
	// DataDir is the data folder of the local installation that wrote the
	// context. Empty: a person did.
	DataDir string `json:"data_dir,omitempty"`
}

// ErrContextTaken is the answer when a context of that name belongs to another
// local installation, or to a person.
var ErrContextTaken = errors.New("a context of that name belongs to something else")

// ErrNoContext is the answer when a context does not exist.
var ErrNoContext = errors.New("no such context")

// Contexts is the folder of a user's contexts.
type Contexts struct{ Dir string }

// UserContexts is the folder $XDG_CONFIG_HOME/flexiq, below $HOME/.config when
// that is not set. env reads the environment.
func UserContexts(env func(string) string) Contexts {
	base := env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) {
		base = filepath.Join(env("HOME"), ".config")
	}
	return Contexts{Dir: filepath.Join(base, "flexiq")}
}

// SaveContext saves a context of the calling user: see [Contexts.Save].
func SaveContext(name string, c Context) error { return UserContexts(os.Getenv).Save(name, c) }

var contextName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$`)

func (s Contexts) file(name string) (string, error) {
	if !contextName.MatchString(name) {
		return "", fault.New(fault.InvalidRequest, "context name %q: must be 1 to 64 of the characters A-Z a-z 0-9 . _ - and not start with a dot", name)
	}
	return filepath.Join(s.Dir, "contexts", name+".json"), nil
}

func (s Contexts) currentFile() string { return filepath.Join(s.Dir, "context") }

// Save writes a context. One that is there is replaced only by the same
// DataDir, else the error is [ErrContextTaken]. The first context becomes the
// current one.
func (s Contexts) Save(name string, c Context) error {
	path, err := s.file(name)
	if err != nil {
		return err
	}
	switch old, err := s.Load(name); {
	case err == nil && old.DataDir != c.DataDir:
		return fmt.Errorf("context %s: %w", name, ErrContextTaken)
	case err != nil && !errors.Is(err, ErrNoContext):
		return err
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("context %s: %w", name, err)
	}
	if err := writeFile(path, append(text, '\n')); err != nil {
		return fmt.Errorf("context %s: %w", name, err)
	}
	if _, err := s.Current(); errors.Is(err, ErrNoContext) {
		return s.Use(name)
	}
	return nil
}

// Load reads a context; [ErrNoContext] when there is none of that name.
func (s Contexts) Load(name string) (Context, error) {
	path, err := s.file(name)
	if err != nil {
		return Context{}, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Context{}, fmt.Errorf("context %s: %w", name, ErrNoContext)
	}
	if err != nil {
		return Context{}, fmt.Errorf("context %s: %w", name, err)
	}
	var c Context
	if err := json.Unmarshal(text, &c); err != nil {
		return Context{}, fmt.Errorf("context %s: %w", name, err)
	}
	return c, nil
}

// Use makes a context the current one.
func (s Contexts) Use(name string) error {
	if _, err := s.Load(name); err != nil {
		return err
	}
	if err := writeFile(s.currentFile(), []byte(name+"\n")); err != nil {
		return fmt.Errorf("current context: %w", err)
	}
	return nil
}

// Current is the name of the current context; [ErrNoContext] when none is.
func (s Contexts) Current() (string, error) {
	text, err := os.ReadFile(s.currentFile())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("current context: %w", ErrNoContext)
	case err != nil:
		return "", fmt.Errorf("current context: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// List names the contexts, in order.
func (s Contexts) List() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, "contexts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("contexts: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && contextName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Resolve says which server and token are meant: those of the environment, and
// for what it leaves open those of the named context (empty: the current one).
// Naming a context overrides the environment. Without a token from either the
// error tells what to do.
func (s Contexts) Resolve(env func(string) string, name string) (Context, error) {
	c := Context{Server: env(EnvServer), Token: env(EnvToken), CAFile: env(EnvCAFile)}
	if name != "" {
		return s.Load(name)
	}
	if c.Server != "" && c.Token != "" {
		return c, nil
	}
	name, err := s.Current()
	if errors.Is(err, ErrNoContext) {
		if c.Token == "" {
			return Context{}, fault.Invalid("token", "none is known: set %s, or add a context", EnvToken)
		}
		return c, nil
	}
	if err != nil {
		return Context{}, err
	}
	saved, err := s.Load(name)
	if err != nil {
		return Context{}, err
	}
	if c.Server != "" {
		saved.Server, saved.CAFile = c.Server, ""
	}
	if c.CAFile != "" {
		saved.CAFile = c.CAFile
	}
	if c.Token != "" {
		saved.Token, saved.PlatformToken = c.Token, ""
	}
	return saved, nil
}

// FromEnvironment dials the server of FLEXIQ_SERVER with the token of
// FLEXIQ_TOKEN, known by the CA certificates of FLEXIQ_CA_FILE; what is not set
// comes from the user's current context.
func FromEnvironment(ctx context.Context) (*Client, error) {
	c, err := UserContexts(os.Getenv).Resolve(os.Getenv, "")
	if err != nil {
		return nil, err
	}
	return Dial(ctx, Options{Server: c.Server, Token: c.Token, CAFile: c.CAFile})
}

// writeFile replaces a file at once, readable by its owner alone.
func writeFile(path string, text []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
