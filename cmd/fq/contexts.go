package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"flexiq/pkg/auth"
	"flexiq/pkg/client"
)

type contextCmd struct {
	Ls  contextListCmd `cmd:"" aliases:"list" help:"List the contexts."`
	Use contextUseCmd  `cmd:"" help:"Make a context the current one."`
	Add contextAddCmd  `cmd:"" help:"Keep a server and a token under a name. The token comes from FLEXIQ_TOKEN, a file, or a prompt."`
}

type contextListCmd struct{}

func (cmd *contextListCmd) Run(s *session) error {
	all := client.UserContexts(s.env)
	names, err := all.List()
	if err != nil {
		return err
	}
	current, err := all.Current()
	if err != nil && !errors.Is(err, client.ErrNoContext) {
		return err
	}
	if s.json() {
		return s.contextsJSON(all, names, current)
	}
	t := new(table)
	t.row("CURRENT", "NAME", "SERVER")
	for _, name := range names {
		c, err := all.Load(name)
		if err != nil {
			return err
		}
		mark := ""
		if name == current {
			mark = "*"
		}
		t.row(mark, name, orDash(c.Server))
	}
	return t.write(s.out)
}

func (s *session) contextsJSON(all client.Contexts, names []string, current string) error {
	b := []byte(`{"contexts":[`)
	for i, name := range names {
		c, err := all.Load(name)
		if err != nil {
			return err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(append(b, `{"name":`...), name), `,"server":`...)
		b = append(appendString(b, c.Server), fmt.Sprintf(`,"current":%t}`, name == current)...)
	}
	_, err := s.out.Write(append(b, "]}\n"...))
	return err
}

type contextUseCmd struct {
	Name string `arg:"" help:"Name of the context."`
}

func (cmd *contextUseCmd) Run(s *session) error {
	return misuse(client.UserContexts(s.env).Use(cmd.Name))
}

type contextAddCmd struct {
	Name          string `arg:"" help:"Name of the context."`
	TokenFile     string `help:"File with the token; - is standard input." placeholder:"FILE"`
	PlatformToken string `name:"platform-token-file" help:"File with a platform token for --as and what spans namespaces." placeholder:"FILE"`
}

func (cmd *contextAddCmd) Run(s *session) error {
	c := client.Context{Server: s.Server}
	if c.Server == "" {
		c.Server = s.env(client.EnvServer)
	}
	if c.Server == "" {
		return usagef("context add: say where the server is: --server nats://… or --server http://…")
	}
	var err error
	if c.CAFile, err = cmd.caFile(s); err != nil {
		return err
	}
	if c.Token, err = cmd.token(s); err != nil {
		return err
	}
	if cmd.PlatformToken != "" {
		if c.PlatformToken, err = s.readToken(cmd.PlatformToken); err != nil {
			return err
		}
	}
	for _, t := range []string{c.Token, c.PlatformToken} {
		if _, err := auth.Parse(t); t != "" && err != nil {
			return usagef("context add: %v", err)
		}
	}
	if c.Token == "" {
		return usagef("context add: no token is given: set %s, or use --token-file", client.EnvToken)
	}
	return misuse(client.UserContexts(s.env).Save(cmd.Name, c))
}

// caFile is the file of CA certificates, as it is found from every folder.
func (cmd *contextAddCmd) caFile(s *session) (string, error) {
	file := s.CAFile
	if file == "" {
		file = s.env(client.EnvCAFile)
	}
	if file == "" {
		return "", nil
	}
	return filepath.Abs(file)
}

// token reads the token from where no other user of the host can see it.
func (cmd *contextAddCmd) token(s *session) (string, error) {
	switch t := s.env(client.EnvToken); {
	case cmd.TokenFile != "":
		return s.readToken(cmd.TokenFile)
	case t != "":
		return t, nil
	}
	if !terminal(s.in) {
		return "", nil
	}
	fmt.Fprint(s.err, "token: ")
	text, err := term.ReadPassword(int(s.in.(*os.File).Fd()))
	fmt.Fprintln(s.err)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return string(bytes.TrimSpace(text)), nil
}

func (s *session) readToken(file string) (string, error) {
	const most = 4096
	in, closeIn, err := s.open(file)
	if err != nil {
		return "", err
	}
	defer closeIn()
	text, err := io.ReadAll(io.LimitReader(in, most))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
