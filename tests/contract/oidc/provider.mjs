// A certified OpenID Connect provider for tests, on loopback: who enters a name is that person, whatever the password.
import Provider from "oidc-provider";

const [, , port, redirect] = process.argv;
const people = {
  ann: { email: "ann@example.com", email_verified: true, groups: ["ml", "all"] },
  eve: { email: "ann@example.com", email_verified: false, groups: [] },
};
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "fairlead",
      client_secret: "s3cret:/+ word",
      redirect_uris: [redirect],
      grant_types: ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
      response_types: ["code"],
    },
  ],
  claims: { openid: ["sub"], profile: ["preferred_username"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "profile", "email", "groups"],
  pkce: { required: () => true, methods: ["S256"] },
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
  cookies: { keys: ["tests only"] },
  async findAccount(_, id) {
    return { accountId: id, claims: async () => ({ sub: `sub-${id}`, preferred_username: id, ...people[id] }) };
  },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
