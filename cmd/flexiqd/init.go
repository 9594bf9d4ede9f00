package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/rs/zerolog"

	"flexiq/pkg/client"
)

// initCommand makes the store and the installation's first tokens without
// serving, or replaces those tokens. It may run beside a daemon.
type initCommand struct {
	storeFlags
	Rotate     bool   `help:"Replace the platform token and the default namespace's first token; the old ones are revoked." env:"FLEXIQ_ROTATE"`
	NATSURL    string `name:"nats-url" help:"Outside NATS server, for the credentials file; empty is the embedded one." env:"FLEXIQ_NATS_URL"`
	NATSListen string `name:"nats-listen" help:"Address of the embedded NATS server, for the credentials file." default:"127.0.0.1:4222" env:"FLEXIQ_NATS_LISTEN"`
	HTTPListen string `name:"http-listen" help:"Address of HTTP and gRPC, for the credentials file." default:"127.0.0.1:8080" env:"FLEXIQ_HTTP_LISTEN"`
	TLSCA      string `name:"tls-ca" help:"CA certificates (PEM) by which clients of this host know whom they speak to." type:"existingfile" placeholder:"FILE" env:"FLEXIQ_TLS_CA"`
}

// Run is called by kong.
func (c *initCommand) Run(ctx context.Context, io stdio) error {
	if err := c.complete(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return fmt.Errorf("cannot create the data folder: %w", err)
	}
	free, err := lockCredentials(c.DataDir)
	if err != nil {
		return err
	}
	defer free()
	log := zerolog.New(io.err).Level(zerolog.WarnLevel).With().Timestamp().Logger()
	s, err := openStore(ctx, storeOptions{url: c.Store, pgSchema: c.PGSchema, migrate: true}, log)
	if err != nil {
		return err
	}
	defer s.Close()

	now, err := c.addresses()
	if err != nil {
		return err
	}
	said := "The first tokens are in"
	made, err := firstTokens(ctx, s, c.DataDir, now)
	switch {
	case err != nil:
		return fmt.Errorf("cannot write the first credentials: %w", err)
	case made:
	case c.Rotate:
		if err := rotateTokens(ctx, s, c.DataDir, now); err != nil {
			return fmt.Errorf("the tokens are not replaced yet: %w; run the command again", err)
		}
		said = "The old tokens are revoked; the new ones are in"
	}
	path := credentialsFile(c.DataDir)
	held, err := readCredentials(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the installation has its first tokens, and they are not in %s; --rotate replaces them", c.DataDir)
	}
	if err != nil {
		return err
	}
	if err := held.saveContext(c.DataDir, c.TLSCA); err != nil {
		fmt.Fprintln(io.err, "flexiqd: the client context local was not saved:", err)
	}
	_, err = fmt.Fprintf(io.out, "%s %s\n", said, path)
	return err
}

// addresses are those of the credentials file, if there is one, else those of
// the options. A daemon writes its own when it starts.
func (c *initCommand) addresses() (credentials, error) {
	switch held, err := readCredentials(credentialsFile(c.DataDir)); {
	case err == nil:
		return held, nil
	case !errors.Is(err, fs.ErrNotExist) && !c.Rotate:
		return held, err
	}
	at := credentials{NATSURL: c.NATSURL, HTTPURL: "http://" + c.HTTPListen}
	if at.NATSURL == "" {
		at.NATSURL = "nats://" + c.NATSListen
	}
	return at, nil
}

// saveContext tells the command line of this user where the tokens are.
func (c credentials) saveContext(dir, caFile string) error {
	return client.SaveContext("local", client.Context{
		Server: c.NATSURL, Token: c.Tokens["default"], PlatformToken: c.Tokens["platform"], DataDir: dir, CAFile: caFile,
	})
}
