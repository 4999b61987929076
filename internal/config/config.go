// Package config reads tallygate.yaml, the one file that configures all services.
//
// The file is read strictly: unknown keys are refused, and all problems of a file
// are reported together, each with its line, its key and what to do. Every
// single value (not the policies) can be set from the environment too, by a name
// that follows from its key: TALLYGATE_ and the key in capitals, dots as
// underscores. The environment wins over the file.
//
//	redis:
//	  url: redis://cache.internal:6379/0     TALLYGATE_REDIS_URL=redis://…
//	enforcer:
//	  listen: 0.0.0.0:8080                   TALLYGATE_ENFORCER_LISTEN=0.0.0.0:8080
//
// A secret can come from a file instead, so that neither the configuration nor
// the environment holds it: each key of type Secret has a twin with _file
// appended (redis.password_file, TALLYGATE_REDIS_PASSWORD_FILE).
package config

import "time"

// Config is everything that can be configured. Default returns the values that
// hold for keys that are absent. It is not changed after Load returned it.
type Config struct {
	// Namespace begins the hash tag of every key, {api:T}, and with it the prefix
	// of the search index. Default api. All services must agree on it.
	Namespace string `yaml:"namespace"`
	Log       Log    `yaml:"log"`
	Redis     Redis  `yaml:"redis"`

	Counters Counters `yaml:"counters"`
	Enforcer Enforcer `yaml:"enforcer"`
	RLS      RLS      `yaml:"rls"`
	// ForwardAuth answers gateways that ask about each request of theirs.
	ForwardAuth ForwardAuth `yaml:"forward_auth"`
	Tracker     Tracker     `yaml:"tracker"`
	Indexer     Indexer     `yaml:"indexer"`
	Admin       Admin       `yaml:"admin"`
	Bus         Bus         `yaml:"bus"`
	History     History     `yaml:"history"`

	// DefaultPolicy is the policy of requests that name none. Default default.
	DefaultPolicy string `yaml:"default_policy"`
	// Policies by name. Without any, there is one, default, of 60 units per minute.
	Policies map[string]Policy `yaml:"policies"`

	path   string // of the file; "" without one
	source []byte // its content
	getenv func(string) string
}

// Log says how the services log, on standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn or error. Default info.
	Format string `yaml:"format"` // text or json. Default text.
}

// Redis says where the counters are.
type Redis struct {
	// URL is redis://[user:password@]host:port[/db], rediss:// for TLS, or
	// unix:///path. Default redis://127.0.0.1:6379/0.
	URL SecretURL `yaml:"url"`
	// Username and Password override those in the URL.
	Username string `yaml:"username"`
	Password Secret `yaml:"password"`
	// Cluster speaks the Cluster protocol, starting from the host of URL and from Addresses. Default false.
	Cluster bool `yaml:"cluster"`
	// SentinelMaster is the name under which Sentinels know the master; then
	// Addresses are the Sentinels', and of URL only user, password, database and TLS count.
	SentinelMaster string   `yaml:"sentinel_master"`
	Addresses      []string `yaml:"addresses"` // host:port of further Cluster nodes, or of the Sentinels
	TLS            TLS      `yaml:"tls"`
	// DialTimeout bounds one attempt to connect. Default 2s.
	DialTimeout time.Duration `yaml:"dial_timeout"`
	// PoolSize bounds the connections per server. Default 16: calls are batched,
	// so few are busy at a time.
	PoolSize int `yaml:"pool_size"`
}

// TLS says how the server is verified and how the client identifies itself.
type TLS struct {
	CAFile     string `yaml:"ca_file"`     // PEM; default the system's roots
	CertFile   string `yaml:"cert_file"`   // PEM; the client's certificate, with KeyFile
	KeyFile    string `yaml:"key_file"`    // PEM
	ServerName string `yaml:"server_name"` // default the host that is dialled
}

// Counters says how long counters live.
type Counters struct {
	// Grace is how long a usage counter outlives its minute, and so how long the
	// tracker may be away without anything being lost. Default 10m. The enforcer
	// and the tracker must agree on it.
	Grace time.Duration `yaml:"grace"`
}

// Server is where a service listens and what it accepts.
type Server struct {
	// Listen is the address of the service. Defaults: the enforcer 127.0.0.1:8080,
	// the indexer 127.0.0.1:8090, the tracker (health only) 127.0.0.1:8085.
	Listen string `yaml:"listen"`
	// DebugListen is the address of /metrics and /debug/pprof; empty turns them off.
	// Defaults: enforcer 127.0.0.1:9080, indexer 127.0.0.1:9090, tracker 127.0.0.1:9085.
	DebugListen string `yaml:"debug_listen"`
	// DrainTimeout bounds how long a stopping service waits for what is under way. Default 10s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
}

// Enforcer configures the service that decides.
type Enforcer struct {
	Server `yaml:",inline"`
	// DecideTimeout bounds one decision, Redis included. Default 1s.
	DecideTimeout time.Duration `yaml:"decide_timeout"`
	// OlderHeaders adds headers that clients may know from before RateLimit and
	// RateLimit-Policy: x-ratelimit (X-RateLimit-Limit, -Remaining and -Reset, the
	// last in unix seconds) or ratelimit (RateLimit-Limit, -Remaining and -Reset,
	// the last in seconds from now). Default none.
	OlderHeaders string `yaml:"older_headers"`
}

// Tracker configures the service that accounts.
type Tracker struct {
	Server `yaml:",inline"`
	// ManageNotifications lets the tracker turn on the keyspace notifications that
	// it needs (CONFIG SET notify-keyspace-events). Default true; where CONFIG is
	// refused, set it to false and start the server with --notify-keyspace-events E$.
	ManageNotifications bool `yaml:"manage_notifications"`
	// FlushInterval is how long changes of a counter are gathered before they are
	// accounted for. Default 100ms.
	FlushInterval time.Duration `yaml:"flush_interval"`
	// RescanInterval is the pace of the scan that finds what notifications lost
	// without anybody noticing; it must be below counters.grace. Default 1m.
	RescanInterval time.Duration `yaml:"rescan_interval"`
	// Share divides the tokens among all trackers that run. Default true; without
	// it each works on all tokens, which is exact as well and costs more.
	Share bool `yaml:"share"`
}

// Indexer configures the service that keeps and answers.
type Indexer struct {
	Server `yaml:",inline"`
	// ReadTokens are the SHA-256 digests (printf %s TOKEN | sha256sum) of the bearer
	// tokens that may ask the query API. Default none: everybody may who reaches it.
	ReadTokens []string  `yaml:"read_tokens"`
	Dashboard  Dashboard `yaml:"dashboard"`
}

// Dashboard says who may look at the indexer's pages. Without credentials they
// are shown to this machine alone: to whoever asks from it, by the name localhost
// or a loopback address.
type Dashboard struct {
	// Open shows the pages to everybody who reaches the indexer, without signing
	// in. Default false; set it only behind something that knows who may look.
	Open bool `yaml:"open"`
	// Credentials are the bearer tokens with which people sign in.
	Credentials []Credential `yaml:"credentials"`
}

// Credential lets one person, or one program, look at the dashboard.
type Credential struct {
	Name string `yaml:"name"` // who it is, as it stands in the audit
	Role string `yaml:"role"` // view or admin
	// SHA256 of the bearer token, 64 hex digits, so that the file holds no secret.
	// Make both: openssl rand -hex 32 | tee token | tr -d '\n' | sha256sum
	SHA256 string `yaml:"sha256"`
}

// Admin configures the API with which administrators steer tokens. The enforcer
// serves it, on an address of its own.
type Admin struct {
	// Listen is the address of the admin API. Default 127.0.0.1:8082. Without
	// credentials nobody listens there.
	Listen string `yaml:"listen"`
	// Credentials are who may use it.
	Credentials []AdminCredential `yaml:"credentials"`
}

// AdminCredential is one administrator, a person or a program.
type AdminCredential struct {
	Name string `yaml:"name"` // stands in audit events
	// SHA256 is that of the bearer token, 64 hex digits; tallygate credential makes
	// both. The token itself is stored nowhere.
	SHA256  string `yaml:"sha256"`
	Role    string `yaml:"role"`    // read or write
	Expires string `yaml:"expires"` // for example 2030-01-31T00:00:00Z; default never
}

// Bus says on what usage records travel from the tracker to the indexer.
type Bus struct {
	// Kind is redis (a stream in the same Redis) or kafka. Default redis.
	Kind string `yaml:"kind"`
	// URL of Kafka: kafka://host:9092,host2:9092/topic, kafka+tls:// for TLS, with
	// user:password@ and ?sasl=scram-sha-512 (the default), scram-sha-256 or plain.
	URL SecretURL `yaml:"url"`
	// Stream is the key of the Redis stream. Default tallygate:usage.
	Stream string `yaml:"stream"`
	// Group is the consumer group of the indexers. Default indexer.
	Group string `yaml:"group"`
	// ClaimAfter is how long an indexer may hold records before it counts as dead
	// and another one takes them over. Default 1m.
	ClaimAfter time.Duration `yaml:"claim_after"`
}

// History says where usage is kept for good.
type History struct {
	// URL is postgres://… or sqlite:PATH. Default sqlite:tallygate.db.
	URL SecretURL `yaml:"url"`
	// KeepMinutes is how long usage is kept by the minute; hours and days stay.
	// Whole days are dropped, so the last minutes live up to a day longer.
	// Default 0: for good.
	KeepMinutes time.Duration `yaml:"keep_minutes"`
}

// Policy is a named set of limits.
type Policy struct {
	Limits    []Limit `yaml:"limits"`
	Unlimited bool    `yaml:"unlimited"` // counts usage, refuses nothing; then there are no limits
	Blocked   bool    `yaml:"blocked"`   // refuses everything; then there are no limits
}

// Limit allows at most Quota units per Window.
type Limit struct {
	Name string `yaml:"name"` // unique in its policy, [a-z0-9-]
	// Algorithm is fixed_window, calendar_window, sliding_window, sliding_log,
	// token_bucket or concurrency. Default fixed_window.
	Algorithm string        `yaml:"algorithm"`
	Quota     int64         `yaml:"quota"`  // units; with concurrency how many at a time
	Window    time.Duration `yaml:"window"` // for example 10s, 1m, 36h, 7d; with concurrency the lease
	// Resources are names, or patterns with *; none means all. Several are counted together.
	Resources []string `yaml:"resources"`
	Shadow    bool     `yaml:"shadow"` // asked and reported, but never refuses

	FromFirst     bool          `yaml:"from_first"`     // fixed_window: a window begins with its first request
	Calendar      Calendar      `yaml:"calendar"`       // calendar_window: which windows
	Precision     time.Duration `yaml:"precision"`      // sliding_window: of a part, divides the window
	MinInterval   time.Duration `yaml:"min_interval"`   // sliding_log: least distance between two requests
	CountRejected bool          `yaml:"count_rejected"` // sliding_log: refused requests count as well
	Burst         int64         `yaml:"burst"`          // token_bucket: units of a full bucket; default the quota
}

// Calendar says which windows of a calendar a limit counts in.
type Calendar struct {
	Unit    string `yaml:"unit"`    // hour, day, week, month, quarter or year
	Zone    string `yaml:"zone"`    // of the IANA database, for example Europe/Vienna. Default UTC.
	Weekday string `yaml:"weekday"` // on which a week begins. Default monday.
	Day     int    `yaml:"day"`     // on which a month, quarter or year begins; the last one in shorter months. Default 1.
	Month   string `yaml:"month"`   // in which a year begins. Default january.
}

// Default returns the configuration of an empty file.
func Default() *Config {
	server := func(port string) Server {
		return Server{Listen: "127.0.0.1:80" + port, DebugListen: "127.0.0.1:90" + port, DrainTimeout: 10 * time.Second}
	}
	return &Config{
		Namespace:   "api",
		Log:         Log{Level: "info", Format: "text"},
		Redis:       Redis{URL: "redis://127.0.0.1:6379/0", DialTimeout: 2 * time.Second, PoolSize: 16},
		Counters:    Counters{Grace: 10 * time.Minute},
		Enforcer:    Enforcer{Server: server("80"), DecideTimeout: time.Second, OlderHeaders: "none"},
		RLS:         defaultRLS(),
		ForwardAuth: defaultForwardAuth(),
		Tracker: Tracker{
			Server: server("85"), ManageNotifications: true,
			FlushInterval: 100 * time.Millisecond, RescanInterval: time.Minute, Share: true,
		},
		Indexer:       Indexer{Server: server("90")},
		Admin:         Admin{Listen: "127.0.0.1:8082"},
		Bus:           Bus{Kind: "redis", Stream: "tallygate:usage", Group: "indexer", ClaimAfter: time.Minute},
		History:       History{URL: "sqlite:tallygate.db"},
		DefaultPolicy: "default",
	}
}

// defaultPolicies stand in for a file without policies.
func defaultPolicies() map[string]Policy {
	return map[string]Policy{
		"default": {Limits: []Limit{{Name: "minute", Algorithm: "fixed_window", Quota: 60, Window: time.Minute}}},
	}
}
