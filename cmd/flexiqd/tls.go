package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// renewalCheck is how often, at most, the certificate's files are looked at.
const renewalCheck = 10 * time.Second

// certificate is the listeners' certificate. It is read again when its files
// change, so that a renewal needs no restart.
type certificate struct {
	certFile, keyFile string
	log               zerolog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	read    [2]time.Time // when the files were written that current was read from
	looked  time.Time
}

func loadCertificate(certFile, keyFile string, log zerolog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	written, err := c.written()
	if err == nil {
		err = c.load(written)
	}
	if err != nil {
		return nil, &usageError{"--tls-cert", err.Error()}
	}
	return c, nil
}

func (c *certificate) load(written [2]time.Time) error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.current, c.read = &pair, written
	return nil
}

func (c *certificate) written() (times [2]time.Time, err error) {
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return times, err
		}
		times[i] = info.ModTime()
	}
	return times, nil
}

// get is the certificate for one handshake. Files that cannot be read, as in
// the middle of a renewal, leave the old one in use.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= renewalCheck {
		c.looked = now
		written, err := c.written()
		if err == nil && written != c.read {
			if err = c.load(written); err == nil {
				c.log.Info().Str("file", c.certFile).Msg("the renewed certificate is in use")
			}
		}
		if err != nil {
			c.log.Warn().Err(err).Msg("the certificate's files cannot be read; the old certificate stays in use")
		}
	}
	return c.current, nil
}

// config is for one listener; nil without a certificate.
func (c *certificate) config() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12}
}

// address is how clients of this host reach a listener: where the certificate
// does not name the listener's own host, by the first name that it does.
func (c *certificate) address(scheme, listener string) string {
	if c == nil {
		return scheme + "://" + listener
	}
	scheme = map[string]string{"http": "https", "nats": "tls"}[scheme]
	host, port, err := net.SplitHostPort(listener)
	if err != nil {
		return scheme + "://" + listener
	}
	c.mu.Lock()
	leaf := c.current.Leaf
	c.mu.Unlock()
	if leaf.VerifyHostname(host) != nil {
		host = firstName(leaf, host)
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

func firstName(leaf *x509.Certificate, otherwise string) string {
	for _, name := range leaf.DNSNames {
		if !strings.HasPrefix(name, "*.") {
			return name
		}
	}
	for _, ip := range leaf.IPAddresses {
		return ip.String()
	}
	return otherwise
}

// checkTLS refuses half of a pair.
func (c *serveCommand) checkTLS() error {
	switch {
	case c.TLSCert != "" && c.TLSKey == "":
		return &usageError{"--tls-key", "is required with --tls-cert"}
	case c.TLSKey != "" && c.TLSCert == "":
		return &usageError{"--tls-cert", "is required with --tls-key"}
	}
	return nil
}

// checkListen refuses an address that would carry tokens in the clear beyond
// this host.
func (c *serveCommand) checkListen(flag, addr string) error {
	host, err := checkAddress(flag, addr)
	if err != nil {
		return err
	}
	if !loopback(host) && c.TLSCert == "" && !c.Insecure {
		return &usageError{flag, fmt.Sprintf("%s is reachable from other hosts and tokens would travel in the clear; "+
			"give --tls-cert and --tls-key, or accept it with --insecure", addr)}
	}
	return nil
}
