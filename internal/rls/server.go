package rls

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Server serves a Service over gRPC, together with gRPC health and reflection.
type Server struct {
	Service  *Service
	Listener net.Listener
	TLS      *tls.Config // nil is plain text
	// MaxConnectionAge is how old a connection becomes (give or take a tenth)
	// before it is told to go away, so that gateways spread over new servers; 0 is
	// for ever. After MaxConnectionAgeGrace more it is cut.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
	// DrainTimeout is how long calls under way are waited for when stopping.
	DrainTimeout time.Duration
}

// Limits of every connection.
const (
	maxMessage = 1 << 20 // bytes
	maxStreams = 4096    // calls under way on one connection
	pingIdle   = time.Minute
	pingWait   = 20 * time.Second
	minPing    = 5 * time.Second // gateways may ping this often

	// workers answer calls one after another, which spares each the growth of a
	// fresh stack. They wait for Redis most of the time, so there are as many as
	// calls are usually under way; more calls get goroutines of their own.
	workers = 512
)

// healthName is the service that envoyproxy/ratelimit reports the health of.
const healthName = "ratelimit"

// Run serves until ctx ends, then turns unhealthy, stops accepting, and waits for
// calls under way. Those that outlast DrainTimeout are cut off and are an error.
func (s Server) Run(ctx context.Context) error {
	options := []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: s.MaxConnectionAge, MaxConnectionAgeGrace: s.MaxConnectionAgeGrace,
			Time: pingIdle, Timeout: pingWait,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(workers),
		grpc.ConnectionTimeout(10 * time.Second),
	}
	if s.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.TLS)))
	}
	server := grpc.NewServer(options...)
	pb.RegisterRateLimitServiceServer(server, s.Service)
	state := health.NewServer()
	for _, name := range []string{"", healthName, pb.RateLimitService_ServiceDesc.ServiceName} {
		state.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	healthpb.RegisterHealthServer(server, state)
	reflection.Register(server)

	served := make(chan error, 1)
	go func() { served <- server.Serve(s.Listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve gRPC on %s: %w", s.Listener.Addr(), err)
	case <-ctx.Done():
	}
	state.Shutdown()
	stopped := make(chan struct{})
	go func() { server.GracefulStop(); close(stopped) }()
	drain := time.NewTimer(s.DrainTimeout)
	defer drain.Stop()
	select {
	case <-stopped:
		return nil
	case <-drain.C:
		server.Stop()
		<-stopped
		return errors.New("gRPC calls on " + s.Listener.Addr().String() + " were still under way after " + s.DrainTimeout.String() + " and were cut off")
	}
}
