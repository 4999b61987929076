package kafkabus

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Options of New; the zero value of each field stands for its default.
type Options struct {
	// Brokers to begin with, host:port; the others are learnt from them. Required.
	Brokers []string
	// Topic carries the messages, overriding the default "tallygate.usage".
	Topic string
	// Group is the consumer group, overriding the default "indexer".
	Group string
	// Partitions of the topic if it has to be created, overriding the default 12.
	// It bounds how many consumers share the work.
	Partitions int32
	// Replication of the topic if it has to be created, overriding the brokers'
	// own default.
	Replication int16
	// Retention of the topic if it has to be created, overriding the default 7
	// days: how long a consumer may be away.
	Retention time.Duration
	// TLS is used when it is not nil.
	TLS *tls.Config
	// SASL authenticates when it is not nil.
	SASL sasl.Mechanism
	// Log gets what an operator should know, overriding slog.Default.
	Log *slog.Logger
	// Client has further options of the underlying clients.
	Client []kgo.Opt
}

func (o Options) withDefaults() Options {
	if o.Topic == "" {
		o.Topic = "tallygate.usage"
	}
	if o.Group == "" {
		o.Group = "indexer"
	}
	if o.Partitions <= 0 {
		o.Partitions = 12
	}
	if o.Replication <= 0 {
		o.Replication = -1 // the brokers decide
	}
	if o.Retention <= 0 {
		o.Retention = 7 * 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

func (o Options) client() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(o.Brokers...), kgo.ClientID("tallygate")}
	if o.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(o.TLS))
	}
	if o.SASL != nil {
		opts = append(opts, kgo.SASL(o.SASL))
	}
	return append(opts, o.Client...)
}

// ErrURL is returned by Parse; its text never shows a password.
var ErrURL = errors.New("invalid Kafka URL")

// Parse reads options from a URL:
//
//	kafka://host:9092,host2:9092/topic
//	kafka+tls://user:password@host:9092/topic?sasl=scram-sha-512
//
// The topic may be absent. sasl is plain, scram-sha-256 or scram-sha-512 (the
// default when there is a user); plain without TLS is refused, as it would show
// the password to the network.
func Parse(text string) (Options, error) {
	// A list of hosts is no host to net/url: take it out before.
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "kafka" && scheme != "kafka+tls" {
		return Options{}, fmt.Errorf("%w: it must begin with kafka:// or kafka+tls://", ErrURL)
	}
	authority, tail, _ := strings.Cut(rest, "/")
	authority, query, hasQuery := strings.Cut(authority, "?")
	user, hosts := "", authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, hosts = authority[:at+1], authority[at+1:]
	}
	if hasQuery {
		tail = "?" + query
	}
	u, err := url.Parse("kafka://" + user + "brokers/" + tail)
	if err != nil {
		return Options{}, fmt.Errorf("%w: it cannot be read; percent-encode special characters in the password", ErrURL)
	}
	o := Options{Brokers: strings.Split(hosts, ","), Topic: strings.Trim(u.Path, "/")}
	for i, host := range o.Brokers {
		if host == "" {
			return Options{}, fmt.Errorf("%w: a broker's name is missing", ErrURL)
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			o.Brokers[i] = net.JoinHostPort(host, "9092")
		}
	}
	if scheme == "kafka+tls" {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	mechanism := u.Query().Get("sasl")
	for name := range u.Query() {
		if name != "sasl" {
			return Options{}, fmt.Errorf("%w: parameter %.32q is not known; there is sasl", ErrURL, name)
		}
	}
	password, _ := u.User.Password()
	name := u.User.Username()
	switch {
	case name == "" && mechanism == "":
	case name == "":
		return Options{}, fmt.Errorf("%w: sasl needs a user and a password", ErrURL)
	case mechanism == "plain" && o.TLS == nil:
		return Options{}, fmt.Errorf("%w: sasl=plain would send the password in the clear; use kafka+tls://", ErrURL)
	case mechanism == "plain":
		o.SASL = plain.Auth{User: name, Pass: password}.AsMechanism()
	case mechanism == "scram-sha-256":
		o.SASL = scram.Auth{User: name, Pass: password}.AsSha256Mechanism()
	case mechanism == "scram-sha-512" || mechanism == "":
		o.SASL = scram.Auth{User: name, Pass: password}.AsSha512Mechanism()
	default:
		return Options{}, fmt.Errorf("%w: sasl is %.32q, not plain, scram-sha-256 or scram-sha-512", ErrURL, mechanism)
	}
	return o, nil
}
