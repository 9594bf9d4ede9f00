package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"flexiq/pkg/job"
	"flexiq/pkg/store"
)

// commands is the command line. Every option of serve has an environment twin.
type commands struct {
	Version kong.VersionFlag `help:"Print the version."`
	Serve   serveCommand     `cmd:"" default:"withargs" help:"Run services until a signal; all four when none is named."`
	Migrate migrateCommand   `cmd:"" help:"Look at, take and take back the steps of the store's schema."`
	Init    initCommand      `cmd:"" help:"Make the installation's first tokens, or replace them."`
	NATS    natsCommand      `cmd:"" name:"nats" help:"Set up an outside NATS server."`
	Doctor  doctorCommand    `cmd:"" help:"Compare what is kept about jobs with the jobs, and mend it."`
}

// The services, by the names of the serve command.
const (
	admissionService    = "admission"
	dispatchgateService = "dispatchgate"
	retentionService    = "retention"
	configService       = "config"
)

var allServices = []string{admissionService, dispatchgateService, retentionService, configService}

// serveCommand holds the options of the daemon.
type serveCommand struct {
	Services []string `arg:"" optional:"" help:"Services to run: admission, dispatchgate, retention, config."`

	storeFlags
	Migrate string `help:"Create or upgrade the store at start (${enum})." enum:"on,off" default:"on" env:"FLEXIQ_MIGRATE"`

	NATSURL    string `name:"nats-url" help:"Outside NATS server; empty embeds one." env:"FLEXIQ_NATS_URL"`
	NATSCreds  string `name:"nats-creds" help:"File with the credentials of the services on an outside NATS server: NATS credentials, or the seed of a user." type:"existingfile" placeholder:"FILE" env:"FLEXIQ_NATS_CREDS"`
	NATSAuth   string `name:"nats-auth" help:"File with the keys by which the service config authenticates tenants for an outside NATS server." type:"existingfile" placeholder:"FILE" env:"FLEXIQ_NATS_AUTH"`
	NATSListen string `name:"nats-listen" help:"Address of the embedded NATS server." default:"127.0.0.1:4222" env:"FLEXIQ_NATS_LISTEN"`
	HTTPListen string `name:"http-listen" help:"Address of HTTP and gRPC." default:"127.0.0.1:8080" env:"FLEXIQ_HTTP_LISTEN"`
	Insecure   bool   `help:"Accept listeners beyond loopback without TLS, and NATS servers beyond loopback without authentication." env:"FLEXIQ_INSECURE"`

	TLSCert string `name:"tls-cert" help:"Certificate chain (PEM) of HTTP and of the embedded NATS server; both speak TLS alone then." type:"existingfile" placeholder:"FILE" env:"FLEXIQ_TLS_CERT"`
	TLSKey  string `name:"tls-key" help:"Private key (PEM) of --tls-cert." type:"existingfile" placeholder:"FILE" env:"FLEXIQ_TLS_KEY"`
	TLSCA   string `name:"tls-ca" help:"CA certificates (PEM) by which an outside NATS server, and clients of this host, know whom they speak to. Default: the system's." type:"existingfile" placeholder:"FILE" env:"FLEXIQ_TLS_CA"`

	ClaimLease  time.Duration `help:"Lease of a claim that names none (1s to 1h)." default:"30s" env:"FLEXIQ_CLAIM_LEASE"`
	MaxPayload  int           `help:"Largest payload of a job in bytes (1 to 4194304)." default:"262144" env:"FLEXIQ_MAX_PAYLOAD"`
	Maintenance string        `help:"Whether this process may lead the retention sweep (${enum})." enum:"on,off" default:"on" env:"FLEXIQ_MAINTENANCE"`

	RetentionTick time.Duration `help:"Time between retention sweeps (100ms to 24h)." default:"60s" env:"FLEXIQ_RETENTION_TICK"`
	LeaderLease   time.Duration `help:"Life of the retention leader's lease (1s to 10m)." default:"15s" env:"FLEXIQ_LEADER_LEASE"`
	ArchiveAge    age           `help:"How long completed and cancelled jobs are kept, such as 30d or 36h; 0 is for ever." default:"30d" env:"FLEXIQ_ARCHIVE_AGE"`
	DeadAge       age           `help:"How long dead letters are kept, such as 90d or 36h; 0 is for ever." default:"90d" env:"FLEXIQ_DEAD_AGE"`
	DeadRetryAge  age           `help:"How long a dead letter lies before it is retried automatically; 0 is never." default:"0" env:"FLEXIQ_DEAD_RETRY_AGE"`
	DeadRetryMost int32         `name:"dead-retry-max" help:"How often a dead letter is retried automatically at most (1 to 255)." default:"3" env:"FLEXIQ_DEAD_RETRY_MAX"`
	AuditAge      age           `help:"How long the audit trail is kept, such as 90d or 36h; 0 is for ever." default:"90d" env:"FLEXIQ_AUDIT_AGE"`

	between func(store.Store) store.Store // of tests: what stands between the services and the store

	LogLevel string `help:"Least level that is logged (${enum})." enum:"debug,info,warn,error" default:"info" env:"FLEXIQ_LOG_LEVEL"`

	PprofListen string `name:"pprof-listen" hidden:"" help:"Loopback address for profiles, for benchmarks; empty serves none." env:"FLEXIQ_PPROF_LISTEN"`
}

// age is a duration that also knows days: 90d.
type age time.Duration

// UnmarshalText reads "90d", "36h" or "0".
func (a *age) UnmarshalText(text []byte) error {
	s := string(text)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is not a number of days", s)
		}
		*a = age(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not an age such as 90d, 36h or 0", s)
	}
	*a = age(d)
	return nil
}

// Run is called by kong.
func (c *serveCommand) Run(ctx context.Context, io stdio) error {
	if err := c.complete(); err != nil {
		return err
	}
	d, err := start(ctx, c, io)
	if err != nil {
		return err
	}
	return d.wait(ctx)
}

// complete fills in the defaults that depend on others and checks everything.
func (c *serveCommand) complete() error {
	if len(c.Services) == 0 {
		c.Services = slices.Clone(allServices)
	}
	for _, s := range c.Services {
		if !slices.Contains(allServices, s) {
			return &usageError{"serve", fmt.Sprintf("unknown service %q; there are %s", s, strings.Join(allServices, ", "))}
		}
	}
	slices.Sort(c.Services)
	c.Services = slices.Compact(c.Services)
	if c.NATSURL == "" && len(c.Services) < len(allServices) {
		return &usageError{"--nats-url", "is required when fewer than four services run: they meet on an outside NATS server"}
	}
	if err := c.storeFlags.complete(); err != nil {
		return err
	}
	if err := c.checkTLS(); err != nil {
		return err
	}
	if err := c.checkOutside(); err != nil {
		return err
	}
	if err := c.checkListen("--http-listen", c.HTTPListen); err != nil {
		return err
	}
	if c.NATSURL == "" {
		if err := c.checkListen("--nats-listen", c.NATSListen); err != nil {
			return err
		}
	}
	return c.checkRanges()
}

// checkOutside refuses options of an outside NATS server without one.
func (c *serveCommand) checkOutside() error {
	for flag, value := range map[string]string{"--nats-creds": c.NATSCreds, "--nats-auth": c.NATSAuth} {
		if value != "" && c.NATSURL == "" {
			return &usageError{flag, "is for an outside NATS server: give its --nats-url"}
		}
	}
	return nil
}

func (c *serveCommand) storeOptions() storeOptions {
	return storeOptions{url: c.Store, pgSchema: c.PGSchema, migrate: c.Migrate == "on"}
}

func (c *serveCommand) checkRanges() error {
	between := func(flag string, v, low, high time.Duration) error {
		if v < low || v > high {
			return &usageError{flag, fmt.Sprintf("must be from %s to %s, got %s", low, high, v)}
		}
		return nil
	}
	for _, err := range []error{
		between("--claim-lease", c.ClaimLease, job.MinLease, job.MaxLease),
		between("--retention-tick", c.RetentionTick, 100*time.Millisecond, 24*time.Hour),
		between("--leader-lease", c.LeaderLease, time.Second, 10*time.Minute),
	} {
		if err != nil {
			return err
		}
	}
	if c.DeadRetryMost < 1 || c.DeadRetryMost > 255 {
		return &usageError{"--dead-retry-max", fmt.Sprintf("must be from 1 to 255, got %d", c.DeadRetryMost)}
	}
	if c.MaxPayload < 1 || c.MaxPayload > job.LargestMaxPayload {
		return &usageError{"--max-payload", fmt.Sprintf("must be from 1 to %d bytes, got %d", job.LargestMaxPayload, c.MaxPayload)}
	}
	return nil
}

func (c *serveCommand) runs(service string) bool { return slices.Contains(c.Services, service) }

// defaultDataDir follows the XDG base directory specification.
func defaultDataDir() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "flexiq"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", &usageError{"--data-dir", "is required when there is no home folder"}
	}
	return filepath.Join(home, ".local", "share", "flexiq"), nil
}

// checkAddress reads the host of a listener's address.
func checkAddress(flag, addr string) (host string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", &usageError{flag, fmt.Sprintf("must be HOST:PORT, got %q", addr)}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", &usageError{flag, fmt.Sprintf("the port must be from 0 to 65535, got %q", port)}
	} else if n == 0 && host == "" {
		return "", &usageError{flag, fmt.Sprintf("must be HOST:PORT, got %q", addr)}
	}
	return host, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// natsHosts returns the hosts of a NATS URL list.
func natsHosts(urls string) ([]string, error) {
	var hosts []string
	for part := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(part))
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return nil, &usageError{"--nats-url", fmt.Sprintf("must be like nats://host:4222, got %q", part)}
		}
		hosts = append(hosts, u.Hostname())
	}
	return hosts, nil
}

// redactURL shows a URL without its password.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}
