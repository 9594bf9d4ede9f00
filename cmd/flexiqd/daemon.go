package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"flexiq/pkg/auth"
	"flexiq/pkg/auth/callout"
	"flexiq/pkg/auth/embedded"
	"flexiq/pkg/bus"
	"flexiq/pkg/configcache"
	"flexiq/pkg/events"
	"flexiq/pkg/rpc"
	"flexiq/pkg/store"
	"flexiq/pkg/telemetry"
	"flexiq/services/admission"
	"flexiq/services/config"
	"flexiq/services/dispatchgate"
	"flexiq/services/retention"
)

// stopGrace is how long an orderly stop may take in all.
const stopGrace = 20 * time.Second

// service is what the daemon needs of each of the four.
type service interface {
	Run(ctx context.Context) error
}

// daemon is a running process. It is built by start, which opens everything in
// the order of the fields, and taken down by stop in the reverse order.
type daemon struct {
	opts   *serveCommand
	log    zerolog.Logger
	reg    *prometheus.Registry
	calls  *rpc.Metrics
	health *telemetry.Health
	name   string // of this process, for people and reports

	cert     *certificate // nil: listeners without TLS
	dir      *dataDir     // locked; nil with an outside NATS server
	store    store.Store
	caches   configcache.Caches
	verifier *auth.Verifier
	poller   *configcache.Poller

	authenticator *embedded.Authenticator // nil with an outside NATS server
	nats          *server.Server          // nil with an outside NATS server
	callout       *callout.Authenticator  // nil unless it authenticates for an outside NATS server
	conn          *bus.Conn
	events        *events.Publisher

	admission    *admission.Service
	dispatchgate *dispatchgate.Service
	config       *config.Service
	retention    *retention.Service
	methods      []rpc.Method

	listener  net.Listener
	http      *http.Server
	endpoints []*bus.Endpoints

	running  *errgroup.Group
	stopRuns context.CancelFunc
	failed   context.Context // ends when a part of the process fails
	natsURL  string
	httpURL  string

	noContext bool // the command line was not told where this process is
}

// start builds the process. When it returns without an error, requests are
// served on every door.
func start(ctx context.Context, c *serveCommand, io stdio) (_ *daemon, err error) {
	log, err := telemetry.Logger(io.err, c.LogLevel)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	d := &daemon{opts: c, log: log, reg: telemetry.NewRegistry(), name: host + "-" + strconv.Itoa(os.Getpid())}
	runs, stopRuns := context.WithCancel(context.WithoutCancel(ctx))
	d.stopRuns = stopRuns
	d.running, d.failed = errgroup.WithContext(runs)
	d.health = telemetry.NewHealth(log)
	defer func() {
		if err != nil {
			d.stop()
		}
	}()
	for _, step := range []func(context.Context) error{
		d.openCertificate, d.openStore, d.openCaches, d.openBus, d.openHTTPListener, d.openCredentials, d.openServices, d.openProfiles, d.serve,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	d.greet(io)
	return d, nil
}

// wait serves until ctx ends or a part fails, then stops in order.
func (d *daemon) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-d.failed.Done():
	}
	return d.stop()
}

func (d *daemon) openCertificate(context.Context) (err error) {
	if d.opts.TLSCert != "" {
		d.cert, err = loadCertificate(d.opts.TLSCert, d.opts.TLSKey, d.log)
	}
	return err
}

func (d *daemon) openStore(ctx context.Context) error {
	if d.opts.NATSURL == "" {
		dir, err := lockDataDir(d.opts.DataDir)
		if err != nil {
			return err
		}
		d.dir = dir
	} else if err := os.MkdirAll(d.opts.DataDir, 0o700); err != nil {
		return fmt.Errorf("cannot create the data folder: %w", err)
	}
	s, err := openStore(ctx, d.opts.storeOptions(), d.log)
	if err != nil {
		return err
	}
	d.store = s
	if d.opts.between != nil {
		d.store = d.opts.between(s)
	}
	d.health.Add(telemetry.Check{Name: "store", Critical: true, Run: s.Ping})
	if h, ok := s.(horizon); ok {
		watchHorizon(h, d.reg, d.health)
	}
	return nil
}

// openCaches makes the caches of quotas and tokens and the poller that bounds
// their age.
func (d *daemon) openCaches(context.Context) error {
	d.poller = configcache.NewPoller(d.store, d.changed)
	d.poller.Log = d.log
	d.reg.MustRegister(d.poller)
	d.caches = configcache.NewCaches(d.store, d.poller.Fresh, configcache.NewMetrics(d.reg))
	d.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flexiq_quotas_unreadable", Help: "Namespaces that stand still because their quota cannot be read, of those that this process works for.",
	}, func() float64 { return float64(d.caches.Unreadable()) }))
	d.verifier = auth.NewVerifier(auth.Cached(d.caches.Tokens), time.Now)
	d.reg.MustRegister(d.verifier.Attempts())
	d.health.Add(telemetry.Check{Name: "tokens", Critical: true, Run: d.poller.Check})
	return nil
}

// openBus connects to NATS: a server inside this process, or the outside one.
func (d *daemon) openBus(ctx context.Context) error {
	d.calls = rpc.NewMetrics(d.reg)
	o := bus.Options{Name: "flexiqd " + d.name, Log: d.log, Metrics: d.calls, Registerer: d.reg}
	if d.opts.NATSURL == "" {
		const user = "flexiq-service"
		o.User, o.Password = user, rand.Text()
		d.authenticator = embedded.New(d.verifier, user, o.Password, d.log)
		s, err := embedNATS(d.opts.NATSListen, d.opts.DataDir, d.cert.config(), d.authenticator, d.log)
		if err != nil {
			return err
		}
		d.nats, d.natsURL, o.InProcess = s, d.cert.address("nats", s.Addr().String()), s
		o.Interest = func(subject string) bool { return s.GlobalAccount().Interest(subject) > 0 }
	} else {
		o.URL, o.CAFile, o.CredsFile, d.natsURL = d.opts.NATSURL, d.opts.TLSCA, d.opts.NATSCreds, d.opts.NATSURL
	}
	conn, err := bus.Connect(ctx, o)
	if err != nil {
		return fmt.Errorf("cannot connect to NATS: %w", err)
	}
	d.conn = conn
	if d.events, err = events.Start(conn, d.log, d.reg); err != nil {
		return err
	}
	if d.opts.NATSURL != "" {
		if err := d.checkOutsideNATS(); err != nil {
			return err
		}
		if err := d.openCallout(ctx); err != nil {
			return err
		}
	}
	if err := d.checkMessageSize(); err != nil {
		return err
	}
	d.health.Add(telemetry.Check{Name: "nats", Critical: true, Run: func(context.Context) error {
		if !conn.Raw().IsConnected() {
			return errors.New("not connected")
		}
		return nil
	}})
	return d.hear()
}

// checkOutsideNATS refuses a server that lets anybody in, unless it cannot be
// reached from other hosts.
func (d *daemon) checkOutsideNATS() error {
	if d.conn.Raw().AuthRequired() {
		return nil
	}
	hosts, err := natsHosts(d.opts.NATSURL)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		if !loopback(h) && !d.opts.Insecure {
			return &usageError{"--nats-url", "the server at " + h + " asks for no authentication, so anybody who reaches it is every tenant; " +
				"set it up with users, or accept it with --insecure"}
		}
	}
	d.log.Warn().Msg("the NATS server asks for no authentication: every program that reaches it is every tenant")
	return nil
}

// openCallout begins to authenticate tenants for the outside server, if this
// process has the keys for it.
func (d *daemon) openCallout(ctx context.Context) error {
	if !d.opts.runs(configService) {
		return nil
	}
	if d.opts.NATSAuth == "" {
		if d.conn.Raw().AuthRequired() {
			d.log.Warn().Msg("without --nats-auth this process lets no tenant into the NATS server")
		}
		return nil
	}
	keys, err := callout.ReadKeys(d.opts.NATSAuth)
	if err != nil {
		return &usageError{"--nats-auth", err.Error()}
	}
	d.callout, err = callout.Start(ctx, callout.Options{
		URL: d.opts.NATSURL, CAFile: d.opts.TLSCA, Name: "flexiqd " + d.name, Keys: keys, Verifier: d.verifier, Log: d.log,
	})
	if err != nil {
		return fmt.Errorf("cannot authenticate for the NATS server: %w", err)
	}
	d.health.Add(telemetry.Check{Name: "authenticator", Run: d.callout.Check})
	return nil
}

// messageOverhead is the room in a message for everything but payloads.
const messageOverhead = 64 << 10

// checkMessageSize makes sure that the largest job fits into one NATS message,
// also as base64 in JSON: a job that cannot be sent could never be run.
func (d *daemon) checkMessageSize() error {
	most := (d.conn.Raw().MaxPayload() - messageOverhead) / 4 * 3
	if int64(d.opts.MaxPayload) > most {
		return &usageError{"--max-payload", fmt.Sprintf("%d bytes do not fit into a message of the NATS server, whose max_payload is %d; "+
			"raise that, or allow at most %d here", d.opts.MaxPayload, d.conn.Raw().MaxPayload(), max(0, most))}
	}
	return nil
}

// hear subscribes to the hints about changed quotas and tokens.
func (d *daemon) hear() error {
	heard := func(kind store.Kind, key string, revision int64) {
		d.hinted(kind, key, revision)
		d.poller.Nudge()
	}
	if _, err := d.conn.OnConfig(heard); err != nil {
		return fmt.Errorf("cannot hear hints: %w", err)
	}
	d.conn.OnReconnect(func() {
		d.caches.DropAll()
		d.poller.Nudge()
	})
	return nil
}

func (d *daemon) openHTTPListener(context.Context) error {
	l, err := net.Listen("tcp", d.opts.HTTPListen)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return fmt.Errorf("cannot listen for HTTP on %s: %w; choose another address with --http-listen", d.opts.HTTPListen, err)
	}
	d.listener, d.httpURL = l, d.cert.address("http", l.Addr().String())
	return nil
}

// openServices makes the chosen services.
func (d *daemon) openServices(ctx context.Context) error {
	var err error
	if d.opts.runs(admissionService) {
		cfg := admission.DefaultConfig()
		cfg.MaxPayload = d.opts.MaxPayload
		if d.admission, err = admission.New(cfg, admission.Deps{
			Store: d.store, Jobs: d.store, Quotas: d.caches.Quotas, Overrides: d.caches.Overrides, Hints: d.conn, Reports: d.conn, Log: d.log, Registerer: d.reg,
			Schedules: d.store, Triggers: d.store, Messages: d.conn, Events: d.events,
		}); err != nil {
			return err
		}
		d.methods = append(d.methods, d.admission.Methods()...)
	}
	if d.opts.runs(dispatchgateService) {
		cfg := dispatchgate.DefaultConfig()
		cfg.Lease = d.opts.ClaimLease
		cfg.MaxReplyBytes = min(cfg.MaxReplyBytes, int(d.conn.Raw().MaxPayload())-messageOverhead)
		if d.dispatchgate, err = dispatchgate.New(cfg, dispatchgate.Deps{
			Store: d.store, Quotas: d.caches.Quotas, Hints: d.conn, Reports: d.conn, Events: d.events, Log: d.log, Registerer: d.reg,
		}); err != nil {
			return err
		}
		d.methods = append(d.methods, d.dispatchgate.Methods()...)
		for _, hear := range []func() (func(), error){
			func() (func(), error) { return d.conn.OnReady(d.dispatchgate.Woken) },
			func() (func(), error) { return d.conn.OnFreed(d.dispatchgate.Freed) },
			func() (func(), error) { return d.conn.OnLeft(d.dispatchgate.Left) },
		} {
			if _, err := hear(); err != nil {
				return fmt.Errorf("cannot hear hints: %w", err)
			}
		}
	}
	if d.opts.runs(configService) {
		cfg := config.DefaultConfig()
		cfg.Process, cfg.MaxPayload = d.name, d.opts.MaxPayload
		if d.config, err = config.New(cfg, config.Deps{
			Store: d.store, Bus: d.conn, Invalidate: d.hinted, Cut: d.cut, Events: d.events, Log: d.log, Registerer: d.reg,
		}); err != nil {
			return err
		}
		d.methods = append(d.methods, d.config.Methods()...)
	}
	if d.opts.runs(retentionService) {
		return d.openRetention(ctx)
	}
	return nil
}

func (d *daemon) openRetention(context.Context) error {
	js, err := jetstream.New(d.conn.Raw())
	if err != nil {
		return fmt.Errorf("cannot use JetStream: %w", err)
	}
	cfg := retention.Config{
		Maintenance: d.opts.Maintenance == "on", Tick: d.opts.RetentionTick, Lease: d.opts.LeaderLease,
		ArchiveAge: time.Duration(d.opts.ArchiveAge), DeadAge: time.Duration(d.opts.DeadAge), AuditAge: time.Duration(d.opts.AuditAge),
		DeadRetryAge: time.Duration(d.opts.DeadRetryAge), DeadRetryMost: d.opts.DeadRetryMost,
	}
	d.retention, err = retention.New(cfg, retention.Deps{
		Store: d.store, JetStream: js, Holder: d.name, Log: d.log, Registerer: d.reg,
		Ready: d.conn.PublishReady, Tell: d.conn.PublishSweep, Count: d.conn.PublishStats, Events: d.events,
	})
	if err != nil {
		return err
	}
	d.health.Add(telemetry.Check{Name: "retention", Run: d.retention.Check})
	return nil
}

// cut closes the open connections of a token.
func (d *daemon) cut(tokenID string) {
	if d.authenticator != nil {
		d.authenticator.Cut(tokenID)
	}
	if d.callout != nil {
		d.callout.Cut(tokenID)
	}
}
