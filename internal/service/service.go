// Package service is what every Tallygate service shares: its logger, its HTTP
// addresses, health, metrics, and a life that ends in order.
//
// A service consists of parts, each a function that runs until its context ends.
// All start at once; they stop one after another in the order in which they were
// given, so that what produces stops before what consumes:
//
//	http     stops accepting, waits for requests under way
//	tracker  accounts for what those requests changed, publishes the backlog
//	debug    answers until the end
//
// The debug address (metrics, profiles) is never the public one.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tallygate/tallygate/internal/config"
)

// Service is one running service. Make it with New. It is safe for concurrent use.
type Service struct {
	Name    string
	Log     *slog.Logger
	Metrics *prometheus.Registry
	Health  *Health
}

// New returns a service that logs to stderr.
func New(name string, log config.Log, stderr io.Writer) *Service {
	s := &Service{Name: name, Log: NewLogger(log, stderr).With("service", name), Metrics: prometheus.NewRegistry()}
	s.Health = &Health{log: s.Log, draining: make(chan struct{})}
	s.Metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tallygate_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": Version(), "service": name},
	})
	build.Set(1)
	s.Metrics.MustRegister(build)
	return s
}

// Run listens at the addresses of server, serves handler together with /healthz
// and /readyz, and runs the parts until ctx ends or one of them fails.
func (s *Service) Run(ctx context.Context, server config.Server, handler http.Handler, parts ...Part) error {
	public, err := Listen(server.Listen, s.Name+".listen")
	if err != nil {
		return err
	}
	defer public.Close()
	mux := http.NewServeMux()
	s.Health.Register(mux)
	mux.Handle("/", handler)
	all := append([]Part{s.Serve("http", public, mux, server.DrainTimeout)}, parts...)
	attrs := []any{"address", public.Addr().String(), "version", Version()}
	if server.DebugListen != "" {
		debug, err := Listen(server.DebugListen, s.Name+".debug_listen")
		if err != nil {
			return err
		}
		defer debug.Close()
		attrs = append(attrs, "debug_address", debug.Addr().String())
		all = append(all, s.Serve("debug", debug, DebugHandler(s.Metrics), time.Second))
	}
	s.Log.Info("started", attrs...)
	err = Run(ctx, all...)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	s.Log.Info("stopped")
	return nil
}

// Serve is the part that serves handler; stopping, it turns the service unready first.
func (s *Service) Serve(name string, l net.Listener, handler http.Handler, drain time.Duration) Part {
	h := HTTP{Listener: l, Handler: handler, DrainTimeout: drain, Log: s.Log}
	return Part{Name: name, Run: func(ctx context.Context) error {
		defer context.AfterFunc(ctx, s.Health.Drain)()
		return h.Run(ctx)
	}}
}

// Part is something that runs until its context ends, and then finishes what it
// has begun, on a context of its own, before it returns.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
}

// Run starts all parts and returns when all have returned. When ctx ends, or a
// part fails, it ends the parts' contexts one after another, each after the part
// before it has returned. A part that returns nil early just leaves. The error
// joins those of all parts, the cause of the stop first.
func Run(ctx context.Context, parts ...Part) error {
	type ended struct {
		part string
		err  error
	}
	ends := make(chan ended, len(parts))
	stops := make([]func(), len(parts))
	for i, part := range parts {
		// Not a child of ctx: a part learns of the end only when its turn has come.
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan struct{})
		stops[i] = func() { cancel(); <-done }
		go func() {
			defer close(done)
			ends <- ended{part.Name, part.Run(own)}
		}()
	}
	var errs []error
	note := func(e ended) {
		if e.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", e.part, e.err))
		}
	}
	running := len(parts)
	for running > 0 && len(errs) == 0 && ctx.Err() == nil {
		select {
		case e := <-ends:
			running--
			note(e)
		case <-ctx.Done():
		}
	}
	for _, stop := range stops {
		stop()
	}
	for ; running > 0; running-- {
		note(<-ends)
	}
	return errors.Join(errs...)
}

// Linger returns a context for finishing what was begun under ctx: it ends some
// time after ctx does.
func Linger(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc) {
	linger, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(after, func() { cancel(fmt.Errorf("not finished %v after the stop: %w", after, context.DeadlineExceeded)) })
		context.AfterFunc(linger, func() { timer.Stop() })
	})
	return linger, func() { stop(); cancel(context.Canceled) }
}
