package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of every HTTP server. Handlers bound bodies tighter where they know better.
const (
	maxHeader         = 16 << 10 // bytes
	maxBody           = 1 << 20  // bytes
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 2 * time.Minute // a profile takes half a minute; streams extend it by http.ResponseController
	idleTimeout       = 2 * time.Minute
)

// Listen listens on a TCP address. Its error names the setting, a configuration
// key or a flag, that chooses another one.
func Listen(address, setting string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program; stop that or choose another address with %s", address, setting)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another address with %s", address, err, setting)
	}
	return l, nil
}

// HTTP serves Handler on Listener with the limits of every server of ours.
type HTTP struct {
	Listener     net.Listener
	Handler      http.Handler
	DrainTimeout time.Duration // how long requests under way are waited for
	Log          *slog.Logger
}

// Run serves until ctx ends, then stops accepting and waits for the requests
// under way. Those that outlast DrainTimeout are cut off and are an error.
func (h HTTP) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           http.MaxBytesHandler(h.Handler, maxBody),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(h.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(h.Listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", h.Listener.Addr(), err)
	case <-ctx.Done():
	}
	// ctx has ended, and draining is what remains to be done.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.DrainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		_ = server.Close()
		return fmt.Errorf("requests on %s were still under way after %v and were cut off: %w", h.Listener.Addr(), h.DrainTimeout, err)
	}
	return nil
}

// DebugHandler serves /metrics and /debug/pprof/.
func DebugHandler(metrics *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{Registry: metrics}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
