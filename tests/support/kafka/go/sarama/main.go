// Sessions of sarama: see the package sessions.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"tests/sessions"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// A broker, or a proxy, may take some seconds to start again.
const (
	retries = 40
	pause   = 500 * time.Millisecond
)

func main() {
	sessions.Main(connect)
}

type client struct {
	topic                string
	plain, transactional sarama.SyncProducer
	group                sarama.ConsumerGroup
}

func connect(bootstrap string, login sessions.Login) (sessions.Client, error) {
	brokers := strings.Split(bootstrap, ",")
	c := &client{topic: login.Name}
	config, err := configOf(login, "")
	if err != nil {
		return nil, err
	}
	if c.plain, err = sarama.NewSyncProducer(brokers, config); err != nil {
		return nil, err
	}
	config, _ = configOf(login, ".transactions")
	config.Producer.Transaction.ID = login.Name
	if c.transactional, err = sarama.NewSyncProducer(brokers, config); err != nil {
		return nil, err
	}
	config, _ = configOf(login, ".group")
	c.group, err = sarama.NewConsumerGroup(brokers, login.Name, config)
	return c, err
}

func configOf(login sessions.Login, suffix string) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.ClientID = login.Name + suffix
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max, config.Producer.Retry.Backoff = retries, pause
	config.Metadata.Retry.Max, config.Metadata.Retry.Backoff = retries, pause
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = time.Second
	secure, err := login.TLS()
	if err != nil {
		return nil, err
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = secure != nil, secure
	return config, logIn(config, login)
}

func logIn(config *sarama.Config, login sessions.Login) error {
	sasl := &config.Net.SASL
	sasl.Enable = true
	sasl.Version = sarama.SASLHandshakeV1
	if login.IsRaw {
		sasl.Version = sarama.SASLHandshakeV0
		config.ApiVersionsRequest = false
	}
	sasl.Mechanism = sarama.SASLMechanism(login.Mechanism)
	sasl.User, sasl.Password = login.User, login.Password
	switch login.Mechanism {
	case sarama.SASLTypePlaintext:
	case sarama.SASLTypeSCRAMSHA256:
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: sha256.New} }
	case sarama.SASLTypeSCRAMSHA512:
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: sha512.New} }
	case sarama.SASLTypeOAuth:
		sasl.TokenProvider = tokenFile(login.TokenFile)
	case sarama.SASLTypeGSSAPI:
		service, _, _ := strings.Cut(login.Service, "/")
		sasl.GSSAPI = sarama.GSSAPIConfig{
			AuthType:           sarama.KRB5_KEYTAB_AUTH,
			KeyTabPath:         login.Keytab,
			KerberosConfigPath: login.Krb5Conf,
			ServiceName:        service,
			Username:           login.User,
			Realm:              login.Realm,
			BuildSpn:           func(string, string) string { return login.Service },
		}
	default:
		return fmt.Errorf("unknown mechanism %s", login.Mechanism)
	}
	return nil
}

type tokenFile string

func (t tokenFile) Token() (*sarama.AccessToken, error) {
	token, err := os.ReadFile(string(t))
	return &sarama.AccessToken{Token: string(token)}, err
}

type scramClient struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
}

func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

func (c *client) Send(partition int32, value string) error {
	return c.send(c.plain, partition, value)
}

func (c *client) send(with sarama.SyncProducer, partition int32, value string) error {
	message := &sarama.ProducerMessage{Topic: c.topic, Partition: partition, Value: sarama.StringEncoder(value)}
	_, _, err := with.SendMessage(message)
	return err
}

func (c *client) Transact(isCommitted bool, values ...string) error {
	if err := c.transactional.BeginTxn(); err != nil {
		return err
	}
	for _, value := range values {
		if err := c.send(c.transactional, sessions.Transactional, value); err != nil {
			return err
		}
	}
	if isCommitted {
		return c.transactional.CommitTxn()
	}
	return c.transactional.AbortTxn()
}

func (c *client) Read(ctx context.Context, each func(sessions.Record) error) error {
	reader := &reader{each: each}
	for ctx.Err() == nil && reader.failure() == nil {
		if err := c.group.Consume(ctx, []string{c.topic}, reader); err != nil {
			return err
		}
	}
	return reader.failure()
}

func (c *client) Close() {
	c.plain.Close()
	c.transactional.Close()
	c.group.Close()
}

// reader is told of each partition in a goroutine of its own.
type reader struct {
	each  func(sessions.Record) error
	mutex sync.Mutex
	err   error
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		record := sessions.Record{Partition: message.Partition, Offset: message.Offset, Value: string(message.Value)}
		if err := r.each(record); err != nil {
			r.mutex.Lock()
			r.err = err
			r.mutex.Unlock()
			return err
		}
		session.MarkMessage(message, "")
	}
	return nil
}

func (r *reader) failure() error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.err
}
