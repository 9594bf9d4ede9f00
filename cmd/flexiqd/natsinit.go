package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/nats-io/nkeys"

	"flexiq/pkg/auth"
	"flexiq/pkg/auth/callout"
)

// natsCommand groups what concerns an outside NATS server.
type natsCommand struct {
	Init natsInitCommand `cmd:"" help:"Write the configuration of an outside nats-server, with fresh keys."`
}

// natsInitCommand writes a folder with a nats-server's configuration and the
// secrets of the processes that use it.
type natsInitCommand struct {
	Dir          string `arg:"" help:"Folder to write into."`
	NATSListen   string `name:"nats-listen" help:"Address that the server listens on." default:"127.0.0.1:4222" env:"FLEXIQ_NATS_LISTEN"`
	ServerName   string `help:"Name of the server; each of a cluster needs its own." default:"flexiq" env:"FLEXIQ_SERVER_NAME"`
	JetStreamDir string `name:"jetstream-dir" help:"Folder of the server's JetStream. Default: jetstream in DIR." placeholder:"DIR" env:"FLEXIQ_JETSTREAM_DIR"`
	TLSCert      string `name:"tls-cert" help:"Certificate chain (PEM) of the server, on its host." placeholder:"FILE" env:"FLEXIQ_TLS_CERT"`
	TLSKey       string `name:"tls-key" help:"Private key (PEM) of --tls-cert." placeholder:"FILE" env:"FLEXIQ_TLS_KEY"`
	Insecure     bool   `help:"Accept an address beyond loopback without TLS." env:"FLEXIQ_INSECURE"`
	KeepKeys     bool   `help:"Write the configuration again for the keys that the folder has, as after an upgrade." env:"FLEXIQ_KEEP_KEYS"`
}

// The files of the folder.
const (
	natsConfigFile   = "nats-server.conf"
	natsServicesFile = "services.nk"
	natsAuthFile     = "auth.json"
)

//go:embed natsserver.conf.tmpl
var natsConfigText string

var natsConfig = template.Must(template.New(natsConfigFile).Funcs(template.FuncMap{"quote": strconv.Quote, "list": quotedList}).Parse(natsConfigText))

func quotedList(items []string) string {
	quoted := make([]string, len(items))
	for i, s := range items {
		quoted[i] = strconv.Quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// Run is called by kong.
func (c *natsInitCommand) Run(io stdio) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("cannot create the folder: %w", err)
	}
	keys, services, err := c.keys()
	if err != nil {
		return err
	}
	text, err := c.config(keys, services)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.Dir, natsConfigFile), text, 0o644); err != nil {
		return fmt.Errorf("cannot write the configuration: %w", err)
	}
	scheme := "nats"
	if c.TLSCert != "" {
		scheme = "tls"
	}
	path := func(name string) string { return filepath.Join(c.Dir, name) }
	fmt.Fprintf(io.out, "Start the server:        nats-server --config %s\n", path(natsConfigFile))
	fmt.Fprintf(io.out, "For every flexiqd:       FLEXIQ_NATS_URL=%s://%s FLEXIQ_NATS_CREDS=%s\n", scheme, c.NATSListen, path(natsServicesFile))
	fmt.Fprintf(io.out, "For those with config:   FLEXIQ_NATS_AUTH=%s\n", path(natsAuthFile))
	return nil
}

func (c *natsInitCommand) check() error {
	s := serveCommand{TLSCert: c.TLSCert, TLSKey: c.TLSKey, Insecure: c.Insecure}
	if err := s.checkTLS(); err != nil {
		return err
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return &usageError{"DIR", err.Error()}
	}
	if c.Dir = dir; c.JetStreamDir == "" {
		c.JetStreamDir = filepath.Join(dir, "jetstream")
	}
	return s.checkListen("--nats-listen", c.NATSListen)
}

// keys makes the secrets and writes them, or reads those that are there.
func (c *natsInitCommand) keys() (keys callout.Keys, services string, err error) {
	authFile, servicesFile := filepath.Join(c.Dir, natsAuthFile), filepath.Join(c.Dir, natsServicesFile)
	if c.KeepKeys {
		if keys, err = callout.ReadKeys(authFile); err != nil {
			return keys, "", err
		}
		services, err = publicOf(servicesFile)
		return keys, services, err
	}
	if keys, err = callout.NewKeys(); err != nil {
		return keys, "", err
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return keys, "", err
	}
	seed, err := user.Seed()
	if err != nil {
		return keys, "", err
	}
	text, err := json.MarshalIndent(keys, "", "  ")
	if err != nil {
		return keys, "", err
	}
	if err := createSecret(authFile, text); err != nil {
		return keys, "", err
	}
	if err := createSecret(servicesFile, seed); err != nil {
		return keys, "", err
	}
	services, err = user.PublicKey()
	return keys, services, err
}

// publicOf is the public key of the user whose seed is in a file.
func publicOf(seedFile string) (string, error) {
	text, err := os.ReadFile(seedFile)
	if err != nil {
		return "", err
	}
	user, err := nkeys.FromSeed(bytes.TrimSpace(text))
	if err != nil {
		return "", fmt.Errorf("%s is not the seed of a user", seedFile)
	}
	return user.PublicKey()
}

// createSecret writes a new file that only its owner can read.
func createSecret(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already: --keep-keys goes on using it; for fresh keys choose another folder, or move it away", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// config writes the server's configuration. It holds public keys only.
func (c *natsInitCommand) config(keys callout.Keys, services string) ([]byte, error) {
	public, err := keys.Public()
	if err != nil {
		return nil, err
	}
	publish, subscribe := auth.ServicePermissions()
	var out bytes.Buffer
	err = natsConfig.Execute(&out, map[string]any{
		"Listen": c.NATSListen, "Name": c.ServerName, "JetStreamDir": c.JetStreamDir, "TLSCert": c.TLSCert, "TLSKey": c.TLSKey,
		"MaxPayload": natsMaxPayload, "MaxPending": natsMaxPending, "MaxMemory": natsMaxMemory, "MaxStore": natsMaxStore,
		"Account": keys.Account, "Keys": public, "Services": services, "Publish": publish, "Subscribe": subscribe,
		"Requests": []string{callout.Subject}, "Replies": []string{callout.ReplySubjects},
		"System": []string{callout.Connections, callout.AllKicks}, "Inbox": []string{auth.ServiceInbox + ".>"},
	})
	return out.Bytes(), err
}
