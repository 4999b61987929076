package rls

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/service"
)

// Gateway is the rate limit service as configured: its rules, its listener and
// its server.
type Gateway struct {
	Service *Service
	Source  *Source
	server  Server
}

// GatewayOptions are what a gateway needs beside its configuration.
type GatewayOptions struct {
	Identify     Identify
	Timeout      time.Duration // bounds a call that brings no deadline
	DrainTimeout time.Duration
	Metrics      prometheus.Registerer
	Log          *slog.Logger
}

// NewGateway loads the rules and listens. Run serves; a gateway that is not run
// must be closed.
func NewGateway(c config.RLS, store Store, o GatewayOptions) (*Gateway, error) {
	source, err := Open(c.ConfigDir, LoadOptions{MergeDomains: c.MergeDomains}, o.Log)
	if err != nil {
		return nil, err
	}
	options := Options{
		ShadowMode: c.ShadowMode, QuotaMode: c.QuotaMode, DynamicMetadata: c.DynamicMetadata, NearLimit: c.NearLimitRatio,
		Timeout: o.Timeout, Identify: o.Identify, Metrics: o.Metrics, Log: o.Log,
	}
	if c.ResponseHeaders {
		options.Headers = &HeaderNames{c.LimitHeader, c.RemainingHeader, c.ResetHeader}
	}
	g := &Gateway{
		Source: source, Service: New(source.Rules, store, options),
		server: Server{MaxConnectionAge: c.MaxConnectionAge, MaxConnectionAgeGrace: c.MaxConnectionAgeGrace, DrainTimeout: o.DrainTimeout},
	}
	g.server.Service = g.Service
	source.loaded = g.Service.metrics.loaded
	if c.TLS.CertFile != "" {
		files := TLSFiles{Cert: c.TLS.CertFile, Key: c.TLS.KeyFile, ClientCA: c.TLS.ClientCAFile, ClientName: c.TLS.ClientName}
		if g.server.TLS, err = files.Config(); err != nil {
			return nil, err
		}
	}
	if g.server.Listener, err = listen(c.Listen); err != nil {
		return nil, err
	}
	return g, nil
}

// Addr is where the gateway listens.
func (g *Gateway) Addr() net.Addr { return g.server.Listener.Addr() }

// Close gives the address of a gateway free that is not run.
func (g *Gateway) Close() error { return g.server.Listener.Close() }

// Run serves until ctx ends and calls under way are done.
func (g *Gateway) Run(ctx context.Context) error { return g.server.Run(ctx) }

// listen listens at host:port, or at unix:/path.
func listen(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return service.Listen(address, "rls.listen")
	}
	// A socket that a killed process left behind stands in the way.
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if c, err := net.Dial("unix", path); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("%s is in use by another program; stop that or choose another socket with rls.listen", path)
		}
		_ = os.Remove(path)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another socket with rls.listen", path, err)
	}
	return l, nil
}
