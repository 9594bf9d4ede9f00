package redis

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	dialTimeout = 2 * time.Second
	// redirects bounds how often a command follows its slot to another server.
	redirects = 5
)

var errURL = errors.New("redis: the URL cannot be read; it must be redis://[user:password@]host:port[/database], " +
	"rediss://, redis+cluster:// or rediss+cluster://") // the parser's error may show the password

// silence ends the client library's own log lines, which go past every log of
// the program. It tells there only of errors that callers get too.
var silence = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

// Printf implements the client library's logger.
func (silent) Printf(context.Context, string, ...any) {}

// connect makes the client for a URL.
func connect(ctx context.Context, address string, conns int) (redis.UniversalClient, error) {
	silence()
	u, err := url.Parse(address)
	if err != nil {
		return nil, errURL
	}
	if scheme, ok := strings.CutSuffix(u.Scheme, "+cluster"); ok {
		u.Scheme = scheme
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, errURL
		}
		return cluster(o, conns), nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, errURL
	}
	o.PoolSize, o.Protocol, o.DisableIdentity, o.MaintNotificationsConfig = conns, 2, true, noNotifications()
	o.MaxRetries, o.DialerRetries, o.DialTimeout = -1, 1, dialTimeout // this package knows what may be repeated
	o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout = true, -1, -1
	single := redis.NewClient(o)
	info, err := single.InfoMap(ctx, "cluster").Result()
	if err != nil {
		_ = single.Close() // the first error is the one to tell
		return nil, err
	}
	if info["Cluster"]["cluster_enabled"] != "1" {
		return single, nil
	}
	if err := single.Close(); err != nil {
		return nil, err
	}
	return cluster(&redis.ClusterOptions{Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig}, conns), nil
}

func cluster(o *redis.ClusterOptions, conns int) redis.UniversalClient {
	o.PoolSize, o.Protocol, o.DisableIdentity, o.MaintNotificationsConfig = conns, 2, true, noNotifications()
	o.MaxRedirects, o.DialerRetries, o.DialTimeout = redirects, 1, dialTimeout
	o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout = true, -1, -1
	o.DisableRoutingPolicies = true
	return redis.NewClusterClient(o)
}

func noNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// warn tells the log of settings that lose jobs. A server that does not show
// its settings is asked nothing more.
func (s *Store) warn(ctx context.Context) {
	for _, setting := range []struct{ name, good, trouble string }{
		{"appendonly", "yes", "a restart of the server loses jobs that were acknowledged"},
		{"maxmemory-policy", "noeviction", "the server may delete jobs when its memory is full"},
	} {
		got, err := s.db.ConfigGet(ctx, setting.name).Result()
		if err != nil {
			s.log.Debug().Err(err).Msg("the server does not show its settings")
			return
		}
		if v := got[setting.name]; v != "" && v != setting.good {
			s.log.Warn().Str("setting", setting.name).Str("value", v).Str("should_be", setting.good).Msg(setting.trouble)
		}
	}
}
