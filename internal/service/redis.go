package service

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tallygate/tallygate/internal/config"
)

// ErrRedisUnreachable is wrapped by the error of PingRedis when waiting may help,
// as opposed to wrong credentials or a wrong protocol, which do not mend themselves.
var ErrRedisUnreachable = errors.New("cannot reach Redis")

// NewRedis returns a client as configured. It does not connect. Its errors name the
// key that is wrong and never a password.
func NewRedis(c config.Redis) (redis.UniversalClient, error) {
	base, err := redis.ParseURL(string(c.URL))
	if err != nil {
		return nil, fmt.Errorf("redis.url: %s is refused; write redis://host:port/db", c.URL)
	}
	o := &redis.UniversalOptions{
		Addrs: []string{base.Addr}, DB: base.DB, Username: base.Username, Password: base.Password, TLSConfig: base.TLSConfig,
		DialTimeout: c.DialTimeout, PoolSize: c.PoolSize, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if c.Username != "" {
		o.Username = c.Username
	}
	if c.Password != "" {
		o.Password = string(c.Password)
	}
	if o.TLSConfig, err = tlsConfig(o.TLSConfig, c.TLS); err != nil {
		return nil, err
	}
	switch {
	case c.SentinelMaster != "":
		o.MasterName, o.Addrs = c.SentinelMaster, c.Addresses
		return redis.NewFailoverClient(o.Failover()), nil
	case c.Cluster:
		if o.DB != 0 {
			return nil, fmt.Errorf("redis.url: a cluster has only database 0; remove /%d", o.DB)
		}
		o.Addrs = append(o.Addrs, c.Addresses...)
		return redis.NewClusterClient(o.Cluster()), nil
	}
	simple := o.Simple()
	simple.Network = base.Network // a unix socket
	return redis.NewClient(simple), nil
}

// tlsConfig extends the TLS that a rediss URL asks for (nil: none) by c.
func tlsConfig(base *tls.Config, c config.TLS) (*tls.Config, error) {
	if c == (config.TLS{}) {
		return base, nil
	}
	if base == nil {
		return nil, errors.New("redis.tls: is set but redis.url does not ask for TLS; write rediss://")
	}
	if c.ServerName != "" {
		base.ServerName = c.ServerName
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("redis.tls.ca_file: %w; name a PEM file that this process may read", err)
		}
		base.RootCAs = x509.NewCertPool()
		if !base.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("redis.tls.ca_file: %s holds no PEM certificate", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("redis.tls.cert_file, key_file: %w", err)
		}
		base.Certificates = []tls.Certificate{pair}
	}
	return base, nil
}

// PingRedis asks the server whether it answers. Its error says what to do; it
// wraps ErrRedisUnreachable when waiting may help.
func PingRedis(ctx context.Context, client redis.UniversalClient, c config.Redis) error {
	ctx, cancel := context.WithTimeout(ctx, c.DialTimeout+time.Second)
	defer cancel()
	err := client.Ping(ctx).Err()
	if err == nil {
		return nil
	}
	switch text := err.Error(); {
	case hasAnyPrefix(text, "NOAUTH", "WRONGPASS", "ERR AUTH", "ERR Client sent AUTH", "ERR invalid password"):
		return fmt.Errorf("the Redis at %s refuses the credentials (%w); set redis.username and redis.password_file (or TALLYGATE_REDIS_PASSWORD)", c.URL, err)
	case hasAnyPrefix(text, "NOPERM"):
		return fmt.Errorf("the Redis user at %s may not do what is needed (%w); grant it the commands that the message names", c.URL, err)
	case hasAnyPrefix(text, "ERR This instance has cluster support disabled"):
		return fmt.Errorf("the Redis at %s is no cluster (%w); set redis.cluster to false", c.URL, err)
	case hasAnyPrefix(text, "LOADING", "MASTERDOWN", "CLUSTERDOWN"), unreachable(err):
		return fmt.Errorf("%w at %s (%w); start it, or set redis.url (TALLYGATE_REDIS_URL) to where it runs", ErrRedisUnreachable, c.URL, err)
	}
	return fmt.Errorf("the Redis at %s does not answer PING (%w); check that redis.url names a Redis server", c.URL, err)
}

func unreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded)
}

func hasAnyPrefix(text string, prefixes ...string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}
